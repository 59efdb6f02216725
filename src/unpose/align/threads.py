"""Threads for work in pieces."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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
