"""Finished pieces of long work, kept by whoever calls: what was interrupted goes on from them, to the same bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import NDArray

Arrays = dict[str, NDArray]


class Pieces(Protocol):
    """A place for finished pieces, by name; names are words of letters, digits and hyphens."""

    def load(self, name: str) -> Arrays | None:
        """The piece of this name, or None where it is not finished."""

    def store(self, name: str, arrays: Arrays) -> None:
        """Keep a finished piece."""


@dataclass(frozen=True)
class Chapter:
    """The same place with a word before every name, for work that is done several times."""

    pieces: Pieces
    word: str

    def load(self, name: str) -> Arrays | None:
        return self.pieces.load(f"{self.word}-{name}")

    def store(self, name: str, arrays: Arrays) -> None:
        self.pieces.store(f"{self.word}-{name}", arrays)


def finished(pieces: Pieces | None, name: str, work: Callable[[], Arrays]) -> Arrays:
    """A piece as it was kept, or done now and kept."""
    if pieces is None:
        return work()
    if (known := pieces.load(name)) is not None:
        return known
    arrays = work()
    pieces.store(name, arrays)
    return arrays
