"""unpose: learning that does not depend on pose."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_DOORS = {"InvariantClustering": "unpose.cluster", "align_stack": "unpose.cluster"}


def __getattr__(name: str) -> Any:
    """The names most people need, imported when asked for: what they need is slow to import."""
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'unpose' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_DOORS]
