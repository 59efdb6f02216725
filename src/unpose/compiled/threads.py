"""Threads for work that is split into independent chunks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch


@contextmanager
def worker_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A thread pool in whose workers torch uses one core each; other threads of the program use as many as before.

    On small chunks torch's own threads mostly wait for each other. A matrix product that is shared between threads
    also rounds differently from one on a single core; with this pool the results do not depend on ``workers``.

    Parameters
    ----------
    workers : int
        Number of threads.

    Returns
    -------
    context manager of concurrent.futures.ThreadPoolExecutor

    Examples
    --------
    >>> with worker_pool(2) as pool:
    ...     list(pool.map(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(workers, initializer=_use_one_core) as executor:
        yield executor


_LOCK = Lock()


def _use_one_core() -> None:
    """Let torch use one core in this thread alone.

    ``torch.set_num_threads`` sets the number for its thread and also the one with which every later thread of the
    process begins. That one is read and restored by threads of their own, so that this thread keeps its number.
    """
    with _LOCK:
        before = _in_new_thread(torch.get_num_threads)
        torch.set_num_threads(1)
        torch.get_num_threads()  # fixes the number of this thread, which torch otherwise reads when it first computes
        _in_new_thread(lambda: torch.set_num_threads(before))


def _in_new_thread(call: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


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
