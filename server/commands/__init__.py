"""The server's commands: each module has a ``command``, a ``cyclopts.App``.

They import what is heavy only when they run, so that ``--help`` is quick.
"""
