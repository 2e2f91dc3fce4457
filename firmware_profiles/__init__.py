"""What a class of device can do: one flat TOML file a class, read as package data.

>>> load("pi_4b").cpu
'cortex-a72'
"""

from kellet.firmware_profiles.profile import Profile, load, names, read

__all__ = ["Profile", "load", "names", "read"]
