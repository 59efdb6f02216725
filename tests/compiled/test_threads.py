"""Pools of threads: one core for each worker, and nothing changed for the threads of the program around them."""

from concurrent.futures import ThreadPoolExecutor

import torch

from unpose.compiled import worker_pool


def in_a_new_thread(function):
    with ThreadPoolExecutor(1) as one:
        return one.submit(function).result()


def test_workers_use_one_core_each_and_other_threads_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with worker_pool(2) as pool:
            assert set(pool.map(lambda _: torch.get_num_threads(), range(8))) == {1}
            assert in_a_new_thread(torch.get_num_threads) == 3

            def inner(_):
                with worker_pool(1) as one:
                    return one.submit(torch.get_num_threads).result(), torch.get_num_threads()

            assert set(pool.map(inner, range(4))) == {(1, 1)}
            assert in_a_new_thread(torch.get_num_threads) == 3
        assert torch.get_num_threads() == 3
        assert in_a_new_thread(torch.get_num_threads) == 3
    finally:
        torch.set_num_threads(before)
