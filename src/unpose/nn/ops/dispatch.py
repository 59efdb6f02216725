"""Which implementation of the layers is in force."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local


class _Choice(local):
    """One for each thread. A context variable would do the same, but torch.compile cannot read one."""

    name = "auto"


_CHOICE = _Choice()


@contextmanager
def implementation(name: str) -> Iterator[None]:
    """Choose how layers are computed inside a ``with`` block, networks included; other threads are not touched.

    Parameters
    ----------
    name : {"auto", "plain", "fused"}
        ``"plain"`` is PyTorch's own operations: the reference, for any device, with derivatives of any order.
        ``"fused"`` is, for group attention, compiled loops that write no scores to memory, on the CPU and, but for
        float64, on CUDA; first derivatives only. An error says why where they cannot run. ``"auto"``, the default, is
        fused where it can run, and plain in float64, which is for checking. Norms, pointwise layers and the tables of
        separable encodings have kernels on CUDA, which they take wherever they can unless told ``"plain"``.

    Examples
    --------
    >>> import torch
    >>> from unpose.nn import group_attention
    >>> maps, table = torch.randn(1, 2, 4, 5, 7, 6), torch.randn(1, 4, 4, 3, 3, 6)
    >>> with implementation("plain"):
    ...     reference = group_attention(maps, maps, maps, table)
    >>> torch.allclose(group_attention(maps, maps, maps, table), reference, atol=1e-5)
    True
    """
    if name not in ("auto", "plain", "fused"):
        raise ValueError(f"the implementation must be 'auto', 'plain' or 'fused', got {name!r}")
    before, _CHOICE.name = _CHOICE.name, name
    try:
        yield
    finally:
        _CHOICE.name = before


def chosen() -> str:
    """The name in force in this thread: ``"auto"``, ``"plain"`` or ``"fused"``."""
    return _CHOICE.name
