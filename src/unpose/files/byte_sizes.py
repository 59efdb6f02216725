"""Memory sizes written by people, such as 4GB."""

import math
import re

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
