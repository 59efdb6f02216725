"""Blocks: long stages of a search, split into independent parts that this process or many machines compute.

A block is a pure function of what all blocks of its stage share (such as the images with the settings) and of its own
arguments, and returns a few arrays. Where the blocks begin and end depends on neither the number of processes nor on
their memory, so the results are the same bytes wherever the blocks run. Finished blocks are checkpoints.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from unpose.align.checkpoints import Arrays, Checkpoints

__all__ = ["Executor", "Work", "concatenate", "run_blocks"]

Work = Callable[..., Arrays]
"""Computes one block: ``work(shared, **arguments)``. To run elsewhere it must be a function of a module, or a partial
of one, and ``shared`` and the arguments must support pickle."""


class Executor(Protocol):
    """Where blocks are computed.

    Examples
    --------
    >>> class Here:
    ...     ahead = 0
    ...     def submit(self, work, shared, arguments):
    ...         return partial(work, shared, **arguments)
    >>> double = lambda factor, rows: {"result": factor * np.arange(rows.start, rows.stop)}
    >>> blocks = run_blocks(double, 2, lambda rows: {"rows": rows}, 5, 3, stage="double", executor=Here())
    >>> concatenate(blocks)["result"]
    array([0, 2, 4, 6, 8])
    """

    @property
    def ahead(self) -> int:
        """Number of blocks that are submitted before the result of the first is asked for."""

    def submit(self, work: Work, shared: Any, arguments: Mapping[str, Any]) -> Callable[[], Arrays]:
        """Begin to compute ``work(shared, **arguments)``, and return a function that waits for the result.

        Many blocks share the same object ``shared``: it is sent to a process once, by the first block that runs there.
        """


def run_blocks(
    work: Work,
    shared: Any,
    arguments: Callable[[slice], Mapping[str, Any]],
    total: int,
    size: int,
    *,
    stage: str,
    checkpoints: Checkpoints | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    executor: Executor | None = None,
) -> Iterator[Arrays]:
    """Compute the blocks of ``range(total)`` and yield their results in order, each a checkpoint.

    Parameters
    ----------
    work : callable
        Computes one block: ``work(shared, **arguments(rows))``.
    shared : object
        What all blocks need.
    arguments : callable
        Gives the arguments of the block with the rows ``slice(start, stop)``; called only for blocks to be computed.
    total, size : int
        Number of rows, and of rows in a block.
    stage : str
        Name of the stage, for ``progress`` and for the checkpoints ``{stage}-{start}``.
    checkpoints : Checkpoints, optional
        Where finished blocks are stored and loaded from.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` after every block.
    executor : Executor, optional
        Where blocks are computed; by default in this process, one after the other.

    Yields
    ------
    dict of str to array

    Examples
    --------
    >>> def squares(power, numbers):
    ...     return {"result": numbers**power}
    >>> numbers = np.arange(5)
    >>> for block in run_blocks(squares, 2, lambda rows: {"numbers": numbers[rows]}, 5, 2, stage="squares"):
    ...     print(block["result"])
    [0 1]
    [4 9]
    [16]
    """
    waiting: deque[tuple[str, int, bool, Callable[[], Arrays]]] = deque()

    def next_result() -> Arrays:
        name, stop, is_new, result = waiting.popleft()
        arrays = result()
        if is_new and checkpoints is not None:
            checkpoints.store(name, arrays)
        if progress is not None:
            progress(stage, stop, total)
        return arrays

    for start in range(0, total, size):
        rows, name = slice(start, min(start + size, total)), f"{stage}-{start}"
        known = None if checkpoints is None else checkpoints.load(name)
        if known is not None:
            result: Callable[[], Arrays] = partial(dict, known)
        elif executor is None:
            result = partial(work, shared, **arguments(rows))
        else:
            result = executor.submit(work, shared, arguments(rows))
        waiting.append((name, rows.stop, known is None, result))
        if len(waiting) > (0 if executor is None else executor.ahead):
            yield next_result()
    while waiting:
        yield next_result()


def concatenate(blocks: Iterator[Arrays], total: int | None = None) -> Arrays:
    """Concatenate the arrays of all blocks by name.

    Parameters
    ----------
    blocks : iterator of dict of str to array
        At least one.
    total : int, optional
        Rows of the result. If given, blocks are not kept until the last has come, which halves the peak memory.

    Returns
    -------
    dict of str to array

    Examples
    --------
    >>> concatenate(iter([{"x": np.array([1, 2])}, {"x": np.array([3])}]))
    {'x': array([1, 2, 3])}
    """
    if total is None:
        found = list(blocks)
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    result: Arrays = {}
    start = 0
    for block in blocks:
        for name, part in block.items():
            if start == 0:
                result[name] = np.empty((total, *part.shape[1:]), part.dtype)
            result[name][start : start + len(part)] = part
        start += len(next(iter(block.values())))
    return result
