"""Threads for work that is split into independent chunks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def worker_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A thread pool in whose workers torch uses one core each.

    On small chunks torch's own threads mostly wait for each other. A matrix product that is shared between threads
    also rounds differently from one on a single core; with this pool the results do not depend on ``workers``.

    Parameters
    ----------
    workers : int
        Number of threads.

    Returns
    -------
    context manager of concurrent.futures.ThreadPoolExecutor
        On exit it restores the number of torch threads of the caller.

    Examples
    --------
    >>> with worker_pool(2) as pool:
    ...     list(pool.map(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as executor:
            yield executor
    finally:
        torch.set_num_threads(threads)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Bound the threads of torch, and of :func:`in_threads`, inside of the ``with`` block.

    Parameters
    ----------
    count : int
        Number of threads.

    Returns
    -------
    context manager
        On exit it restores the number of torch threads of the caller.

    Examples
    --------
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_threads(run: Callable[[int, int], None], n: int) -> None:
    """Split ``range(n)`` into one slice per torch thread and call ``run(start, stop)`` on each slice in parallel.

    Parameters
    ----------
    run : callable
        Processes the items ``start`` to ``stop - 1``. It must release the GIL to gain from threads.
    n : int
        Number of items.

    Examples
    --------
    >>> squares = np.zeros(5, int)
    >>> def run(start, stop):
    ...     squares[start:stop] = np.arange(start, stop) ** 2
    >>> in_threads(run, 5)
    >>> squares.tolist()
    [0, 1, 4, 9, 16]
    """
    workers = max(1, min(torch.get_num_threads(), n))
    if workers == 1:
        run(0, n)
        return
    bounds = np.linspace(0, n, workers + 1).astype(int)
    with ThreadPoolExecutor(workers) as executor:
        list(executor.map(run, bounds[:-1], bounds[1:]))
