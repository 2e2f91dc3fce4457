"""What a class of device can do: one flat TOML file a class, read as package data.

>>> load("pi_4b").cpu
'cortex-a72'
>>> load("phone_arm64").participation.min_battery
50
"""

from kellet.firmware_profiles.profile import (
    LOG_MB,
    PROCESS_MB,
    Participation,
    Profile,
    WrongKey,
    load,
    names,
    read,
)

__all__ = ["LOG_MB", "PROCESS_MB", "Participation", "Profile", "WrongKey", "load", "names", "read"]
