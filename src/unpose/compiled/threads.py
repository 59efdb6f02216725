"""Threads for work in pieces."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in each of which torch stays on one core.

    Over pieces this small torch's own threads mostly wait for each other, and a matrix product shared by several rounds
    differently than on one: in here the number of workers changes nothing.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as executor:
            yield executor
    finally:
        torch.set_num_threads(threads)


def in_threads(run: Callable[[int, int], None], n: int) -> None:
    """Call ``run(start, stop)`` on as many pieces of ``range(n)`` as torch uses threads."""
    workers = max(1, min(torch.get_num_threads(), n))
    if workers == 1:
        run(0, n)
        return
    bounds = np.linspace(0, n, workers + 1).astype(int)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, bounds[:-1], bounds[1:]))
