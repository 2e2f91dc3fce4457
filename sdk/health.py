"""What a process can say about itself."""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["peak_mb"]


def peak_mb() -> float:
    """The most memory this process has had in RAM, in MB (10^6 bytes).

    From the kernel's VmHWM: getrusage's figure includes what the parent had before
    this program was started.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
