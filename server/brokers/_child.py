"""Start of a broker's process; run as a script, so it imports nothing of Kellet's.

``_child.py PARENT exec COMMAND...`` becomes COMMAND.
``_child.py PARENT iotcore CONFIG`` runs the embedded broker in this process.

Either way the process dies with the thread that started it, by SIGKILL too.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent goes, however it goes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it went before the request was in place
        os._exit(0)


def main(parent: str, kind: str, *arguments: str) -> None:
    die_with(int(parent))
    if kind == "exec":
        os.execvp(arguments[0], arguments)
    from iotcore import Broker

    # The broker wraps each routed message in an error span; unsilenced, every packet is an error.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    Broker(config_path=arguments[0]).run_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
