"""The device's commands: each module has a ``command``, a ``cyclopts.App``."""
