"""The estimate of memory, and the error that says what to give instead."""

import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpose.align import MemoryBudgetError, Search, check_memory, orbit_distances
from unpose.files import available_memory, in_bytes, readable_bytes


@given(size=st.integers(1, 10**14))
def test_a_readable_size_is_read_back_and_never_less(size):
    shown = readable_bytes(size)
    assert size <= in_bytes(shown) <= 1.1 * size + 1
    assert not shown.startswith("0")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it may be unknown")
def test_free_memory_is_known_and_less_than_all():
    assert 0 < available_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("group", ["se2", "similarity+mirror"])
def test_what_the_error_says_works_when_given(group):
    with pytest.raises(MemoryBudgetError) as caught:
        check_memory(400, 0, (48, 48), 1, Search(group=group, max_shift=12, memory="700MB", n_jobs=2))
    error = caught.value
    told = readable_bytes(error.needed)
    assert f"memory={told!r}" in str(error)
    assert error.budget == 700_000_000
    check_memory(400, 0, (48, 48), 1, Search(group=group, max_shift=12, memory=told, n_jobs=2))
    side = error.fitting_side
    assert f"at most {side} pixels" in str(error)
    check_memory(400, 0, (side, side), 1, Search(group=group, max_shift=side / 4, memory="700MB", n_jobs=2))


def test_a_budget_that_nothing_fits_is_named_and_no_size_is_promised():
    with pytest.raises(MemoryBudgetError, match="budget of 5MB") as caught:
        check_memory(9, 0, (32, 32), 1, Search(memory="5MB"))
    assert caught.value.fitting_side is None
    assert "images of at most" not in str(caught.value)


def test_more_images_views_channels_and_threads_need_no_less():
    def need(n=100, side=48, channels=1, jobs=1, **settings):
        with pytest.raises(MemoryBudgetError) as caught:
            check_memory(n, 0, (side, side), channels, Search(n_jobs=jobs, memory="1MB", **settings))
        return caught.value.needed

    least = need()
    for more in (need(n=3000), need(group="similarity"), need(group="se2+mirror"), need(jobs=2), need(max_shift=20.0)):
        assert more > least
    assert need(group="similarity+mirror") < 3e9  # measured: 2.6 GB


def test_pairs_count_and_are_refused_before_they_are_refined():
    images = np.random.default_rng(0).random((300, 9, 9), np.float32)
    check_memory(300, 0, (9, 9), 1, Search(max_shift=1.0, memory="600MB"))
    with pytest.raises(MemoryBudgetError, match="134,550 poses of their pairs") as caught:
        orbit_distances(images, max_shift=1.0, memory="600MB")
    search = Search(max_shift=1.0, memory=readable_bytes(caught.value.needed))
    check_memory(300, 0, (9, 9), 1, search, n_starts=134_550)


@pytest.mark.parametrize("group", ["se2", "similarity+mirror"])
def test_on_a_gpu_the_smallest_chunks_of_pairs_count(group):
    def check(device, memory):
        check_memory(100, 0, (40, 40), 1, Search(group=group, device=device, memory=memory, n_jobs=1))

    with pytest.raises(MemoryBudgetError) as caught:
        check("cuda", "1GB")
    check("cuda", readable_bytes(caught.value.needed))
    with pytest.raises(MemoryBudgetError) as on_cpu:
        check("cpu", "1MB")
    assert caught.value.needed - on_cpu.value.needed > 1e9
