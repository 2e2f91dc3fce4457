"""What a class of device can do: one flat TOML file a class, read as package data.

>>> load("pi_4b").cpu
'cortex-a72'
>>> load("phone_arm64").participation.min_battery
50
"""

from kellet.firmware_profiles.profile import (
    Participation,
    Profile,
    WrongKey,
    load,
    names,
    read,
)

__all__ = ["Participation", "Profile", "WrongKey", "load", "names", "read"]
