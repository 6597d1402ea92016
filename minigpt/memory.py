"""How much memory this process has taken."""

import re
import sys
from pathlib import Path


def peak_memory() -> int | None:
    """Return the most memory that this process had resident, in bytes; None where the system does not say."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would begin with what the process had that started this one
        peak = re.search(r"VmHWM:\s+(\d+)", status.read_text(encoding="ascii", errors="replace"))
        return int(peak[1]) * 1024 if peak else None
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
