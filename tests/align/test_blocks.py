"""Blocks of a search: computed anywhere, in any number of processes, they give the bytes of one call."""

import numpy as np
import pytest
import torch

from kit.doubles import Elsewhere, InMemory, Killed, StopAt
from unpose.align import align, align_from, nearest
from unpose.align.blocks import concatenate, run_blocks
from unpose.cluster import align_stack
from unpose.groups import parse


def powers(exponent, rows, numbers):
    return {"result": numbers**exponent, "row": np.arange(rows.start, rows.stop)}


def arguments(rows):
    return {"rows": rows, "numbers": np.arange(11)[rows]}


@pytest.mark.parametrize("executor", [None, Elsewhere()])
def test_results_come_in_order_and_are_counted(executor):
    told = []
    blocks = run_blocks(
        powers, 3, arguments, 11, 2, stage="cubes", executor=executor, progress=lambda *each: told.append(each)
    )
    found = concatenate(blocks)
    assert found["result"].tolist() == [i**3 for i in range(11)]
    assert found["row"].tolist() == list(range(11))
    assert told == [("cubes", done, 11) for done in (2, 4, 6, 8, 10, 11)]


def test_no_more_blocks_are_under_way_than_the_executor_says():
    executor = Elsewhere()
    list(run_blocks(powers, 2, arguments, 11, 1, stage="squares", executor=executor))
    assert executor.most == executor.ahead + 1


@pytest.mark.parametrize("executor", [None, Elsewhere()])
def test_finished_blocks_are_not_computed_again(executor):
    stored, asked = InMemory(), []
    whole = concatenate(run_blocks(powers, 2, arguments, 11, 3, stage="squares", checkpoints=stored))
    assert list(stored) == ["squares-0", "squares-3", "squares-6", "squares-9"]
    del stored["squares-0"], stored["squares-6"]

    def asked_arguments(rows):
        asked.append(rows.start)
        return arguments(rows)

    again = concatenate(
        run_blocks(powers, 2, asked_arguments, 11, 3, stage="squares", checkpoints=stored, executor=executor)
    )
    assert asked == [0, 6]
    assert again["result"].tolist() == whole["result"].tolist()
    assert len(stored) == 4


SEARCHES = {
    "quick": {"quick": True},
    "quick among candidates": {"quick": True, "candidates": 12, "group": "se2+mirror"},
    "full": {"group": "se2+mirror"},
    "full among candidates": {"candidates": 12},
    "index": {"candidates": "index"},
}
MORE = ("quick", "full", "full among candidates")
NEIGHBOURS = ("indices", "distances", "poses")


def neighbours(images, search, **options):
    found = nearest(images, 3, max_shift=3.0, **SEARCHES[search], **options)
    return [getattr(found, name).tobytes() for name in NEIGHBOURS]


@pytest.mark.parametrize(
    "search",
    ["quick among candidates", "index", *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)],
)
def test_neighbours_are_the_same_bytes_in_any_blocks_anywhere_and_after_any_interruption(search, noisy, small_blocks):
    whole = neighbours(noisy, search)
    executor, stored, reports = Elsewhere(), InMemory(), []
    options = {"limits": small_blocks, "checkpoints": stored}
    assert neighbours(noisy, search, executor=executor, progress=lambda *_: reports.append(1), **options) == whole
    assert len(executor.submitted) == len(stored) > 6
    left = InMemory()
    with pytest.raises(Killed):
        neighbours(noisy, search, progress=StopAt(len(reports) * 2 // 3), **options | {"checkpoints": left})
    assert 0 < len(left) < len(stored)
    del left[next(iter(left))]
    assert neighbours(noisy, search, **options | {"checkpoints": left}) == whole
    assert left.keys() == stored.keys()


def test_an_average_is_the_same_bytes_in_any_blocks_and_after_an_interruption(noisy, small_blocks):
    """What ``unpose align`` computes."""

    def average(**options):
        found = align_stack(noisy[:15], max_shift=2.0, limits=small_blocks, **options)
        return [getattr(found, name).tobytes() for name in ("mean", "standard_error", "poses", "aligned", "distances")]

    executor, stored, reports = Elsewhere(), InMemory(), []
    whole = average(progress=lambda *_: reports.append(1), checkpoints=stored)
    assert average(executor=executor) == whole
    assert len(executor.submitted) > 3
    left = InMemory()
    with pytest.raises(Killed):
        average(checkpoints=left, progress=StopAt(len(reports) * 2 // 3))
    assert 0 < len(left) < len(stored)
    assert average(checkpoints=left) == whole


def test_alignments_are_the_same_bytes_in_any_blocks(noisy, small_blocks):
    images = noisy[:24].copy()
    images[5] = 1.0  # fits at every pose
    images[6] = (images[6] + np.rot90(images[6], 2)) / 2  # has two poses
    to, executor = np.arange(24) % 3, Elsewhere()
    one = align(images, noisy[:3], to=to)
    many = align(images, noisy[:3], to=to, executor=executor, limits=small_blocks)
    assert len(executor.submitted) == 3
    for name in ("poses", "distances", "margins", "converged"):
        assert getattr(one, name).tobytes() == getattr(many, name).tobytes()
    assert [poses.tolist() for poses in one.alternatives] == [poses.tolist() for poses in many.alternatives]
    assert sum(map(len, one.alternatives)) > 0


@pytest.mark.parametrize("among", ["themselves", "others"])
def test_images_are_sent_once_and_without_what_cannot_be_sent(among, noisy, small_blocks):
    executor = Elsewhere()
    options = {"progress": lambda *_: None, "executor": executor, "memory": "8GB", "n_jobs": 2, "limits": small_blocks}
    nearest(noisy, 2, others=None if among == "themselves" else noisy[:9], max_shift=1.0, **options)
    assert len(executor.sizes) == 1
    assert max(executor.sizes) < noisy.nbytes * (1 if among == "themselves" else 52 / 43) + 5000


@pytest.mark.parametrize("shape", [(47, 31), pytest.param((40, 40), marks=pytest.mark.slow)])
def test_neighbours_do_not_depend_on_the_threads_of_torch(shape, rng):
    """A worker has one thread, the process that submits has several."""
    images, before, found = rng.random((211, *shape), np.float32), torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(nearest(images, 2, candidates=5, refine=False, max_shift=1.0, n_jobs=1))
    finally:
        torch.set_num_threads(before)
    assert all(getattr(found[0], name).tobytes() == getattr(found[1], name).tobytes() for name in NEIGHBOURS)


@pytest.mark.parametrize("contrast", ["none", "affine"])
def test_a_pair_does_not_depend_on_how_many_others_are_refined_with_it(contrast, rng, generator):
    # 150 pairs are two whole vectors of 64 and a part; 3 are less than one.
    images = rng.random((9, 13, 17)).astype(np.float32)
    moving, fixed = (images[rng.integers(9, size=150)] for _ in range(2))
    poses = parse("similarity").random(150, generator=generator, max_shift=2.0).numpy()

    def aligned(rows):
        return align_from(moving[rows], fixed[rows], poses[rows], group="similarity", contrast=contrast)

    together = aligned(slice(None))
    for rows in (slice(3), slice(149, 150)):
        for whole, part in zip(together, aligned(rows), strict=True):
            assert whole[rows].tobytes() == part.tobytes()
