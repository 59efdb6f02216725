"""Checkpoints: finished parts of a long computation, stored so that an interrupted run can continue.

The caller of :func:`unpose.align.nearest` decides where they are stored. A run that continues from checkpoints gives
the same bytes as one that was not interrupted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import NDArray

__all__ = ["Arrays", "Checkpoints", "PrefixedCheckpoints", "load_or_compute"]

Arrays = dict[str, NDArray]
"""What one checkpoint holds."""


class Checkpoints(Protocol):
    """A store of named checkpoints. Names consist of letters, digits and hyphens.

    Examples
    --------
    >>> class InMemory(dict):
    ...     load, store = dict.get, dict.__setitem__
    >>> store = InMemory()
    >>> import numpy as np
    >>> _ = load_or_compute(store, "part", lambda: {"result": np.arange(3)})
    >>> list(store)
    ['part']
    """

    def load(self, name: str) -> Arrays | None:
        """Return the checkpoint of this name, or None if that part is not finished."""

    def store(self, name: str, arrays: Arrays) -> None:
        """Store a finished part."""


@dataclass(frozen=True)
class PrefixedCheckpoints:
    """The same store with a prefix before every name, for a computation that is done several times.

    Parameters
    ----------
    checkpoints : Checkpoints
        The store.
    prefix : str
        Put before every name, with a hyphen between.

    Examples
    --------
    >>> class InMemory(dict):
    ...     load, store = dict.get, dict.__setitem__
    >>> store = InMemory()
    >>> PrefixedCheckpoints(store, "round0").store("search", {})
    >>> list(store)
    ['round0-search']
    """

    checkpoints: Checkpoints
    prefix: str

    def load(self, name: str) -> Arrays | None:
        return self.checkpoints.load(f"{self.prefix}-{name}")

    def store(self, name: str, arrays: Arrays) -> None:
        self.checkpoints.store(f"{self.prefix}-{name}", arrays)


def load_or_compute(checkpoints: Checkpoints | None, name: str, compute: Callable[[], Arrays]) -> Arrays:
    """Return the stored checkpoint of this name, or compute and store it.

    Parameters
    ----------
    checkpoints : Checkpoints or None
        The store; None computes every time.
    name : str
        Name of the checkpoint.
    compute : callable
        Computes the arrays, without arguments.

    Returns
    -------
    dict of str to array

    Examples
    --------
    >>> import numpy as np
    >>> load_or_compute(None, "sum", lambda: {"total": np.array(6)})
    {'total': array(6)}
    """
    if checkpoints is None:
        return compute()
    if (known := checkpoints.load(name)) is not None:
        return known
    arrays = compute()
    checkpoints.store(name, arrays)
    return arrays
