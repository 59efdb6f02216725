"""Memory sizes as people write and read them, such as 4GB, and how much memory is free."""

import math
import os
import re
from pathlib import Path

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def in_bytes(size: float | str) -> int:
    """Convert a memory size to bytes.

    Parameters
    ----------
    size : float or str
        A number of bytes, or text such as ``"4GB"``, ``"512 MB"`` or ``"1.5GiB"``. K, M, G or T alone is enough.

    Returns
    -------
    int
        The number of bytes.

    Examples
    --------
    >>> in_bytes("2GB"), in_bytes("2 gib"), in_bytes(512)
    (2000000000, 2147483648, 512)
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e\+?[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", str(size).lower())
    try:
        number = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]] if match else math.nan
    except ValueError:  # two decimal points
        number = math.nan
    if not 1 <= number < math.inf:
        raise ValueError(f"memory must be a size such as 4GB or 800MB, or a number of bytes, got {size!r}")
    return int(number)


def readable_bytes(size: float) -> str:
    """A memory size that people can read and :func:`in_bytes` can read back; never less than ``size``.

    Parameters
    ----------
    size : float
        Number of bytes.

    Returns
    -------
    str

    Examples
    --------
    >>> readable_bytes(4_230_000_000), readable_bytes(12_000_001), readable_bytes(900)
    ('4.3GB', '12.1MB', '900B')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{math.ceil(size * 10 / factor) / 10:g}{unit}"
    return f"{math.ceil(size)}B"


def available_memory() -> int | None:
    """Memory that a process can use without swapping, in bytes; None where the system does not say.

    On Linux this is what the kernel estimates as available, less if the process runs in a container with a limit.
    Elsewhere it is half of the physical memory.

    Returns
    -------
    int or None

    Examples
    --------
    >>> available_memory() is None or available_memory() > 0
    True
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, ValueError, OSError):  # Windows has no sysconf
            return None
    free = int(found[1]) * 1024
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())  # "max" where there is no limit
        used = re.search(r"^anon (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)  # caches can be given up
        return max(0, min(free, limit - (int(used[1]) if used else 0)))
    except (OSError, ValueError):
        return free
