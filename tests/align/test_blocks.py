"""Blocks of a search: computed anywhere, in any number of processes, they give the bytes of one call."""

import pickle

import numpy as np
import pytest
import torch

from unpose.align import Search, align, api, indexed_search, nearest, neighbour_graph, pipeline
from unpose.align.blocks import concatenate, run_blocks
from unpose.data import posed
from unpose.groups import parse


class InMemory(dict):
    load, store = dict.get, dict.__setitem__


class Elsewhere:
    """Computes blocks as another process would: from pickled work and arguments, with a copy of the shared object."""

    ahead = 3

    def __init__(self):
        self.submitted, self.under_way, self.most, self._copies = [], 0, 0, {}

    def submit(self, work, shared, arguments):
        self.submitted.append(work)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if id(shared) not in self._copies:
            self._copies[id(shared)] = pickle.loads(pickle.dumps(shared)), shared
        sent = pickle.dumps((work, dict(arguments)))

        def result():
            self.under_way -= 1
            work, arguments = pickle.loads(sent)
            return work(self._copies[id(shared)][0], **arguments)

        return result


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


@pytest.fixture(scope="module")
def scribbles():
    """43 noisy blurred scribbles of five kinds on 23 pixels."""
    rng = np.random.default_rng(5)
    yy, xx = np.mgrid[:23, :23]
    images = np.zeros((5, 23, 23), np.float32)
    for image in images:
        for x, y in rng.uniform(6, 17, (4, 2)):
            image += np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 4)
    turned = posed(images, "se2", copies=9, random_state=1, max_shift=2.0).images[:43]
    return turned + 0.05 * rng.random(turned.shape, np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks, whose sizes divide nothing."""
    for module, name, size in (
        (indexed_search, "_BLOCK", 23), (api, "_BLOCK", 13), (api, "_SEARCH_BLOCK", 17), (api, "_GRID_BLOCK", 19),
        (neighbour_graph, "_BLOCK", 331), (pipeline, "_PAIR_BLOCK", 11),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, {"cpu": size})


SEARCHES = {
    "quick": {"quick": True},
    "quick among candidates": {"quick": True, "candidates": 12, "group": "se2+mirror"},
    "full": {"group": "se2+mirror"},
    "index": {"candidates": "index"},
}


@pytest.mark.parametrize(
    "search",
    ["quick among candidates", *(pytest.param(each, marks=pytest.mark.slow) for each in ("quick", "full", "index"))],
)
def test_neighbours_are_the_same_bytes_in_any_blocks(search, scribbles, request):
    whole = nearest(scribbles, 3, **SEARCHES[search])
    request.getfixturevalue("small_blocks")
    executor, stored = Elsewhere(), InMemory()
    found = nearest(scribbles, 3, executor=executor, checkpoints=stored, **SEARCHES[search])
    for name in ("indices", "distances", "poses"):
        assert getattr(found, name).tobytes() == getattr(whole, name).tobytes()
    assert len(executor.submitted) == len(stored) > 4


def test_alignments_are_the_same_bytes_in_any_blocks(scribbles, small_blocks):
    images = scribbles[:24].copy()
    images[5] = 1.0  # fits at every pose
    images[6] = (images[6] + np.rot90(images[6], 2)) / 2  # has two poses
    to = np.arange(24) % 3
    executor = Elsewhere()
    one, many = (align(images, scribbles[:3], to=to, executor=each) for each in (None, executor))
    assert len(executor.submitted) == 3
    for name in ("poses", "distances", "margins", "converged"):
        assert getattr(one, name).tobytes() == getattr(many, name).tobytes()
    assert [poses.tolist() for poses in one.alternatives] == [poses.tolist() for poses in many.alternatives]
    assert sum(map(len, one.alternatives)) > 0


def test_a_job_is_sent_as_its_images_and_settings_alone(scribbles):
    job = pipeline.Job(scribbles, None, pipeline.Search(progress=print, executor=Elsewhere(), memory="8GB", n_jobs=2))
    assert job.index is not None  # computed, and not sent
    sent = pickle.dumps(job)
    assert len(sent) < scribbles.nbytes + 5000
    copy = pickle.loads(sent)
    assert copy.moving is copy.fixed
    assert (copy.search.progress, copy.search.executor, copy.n_threads) == (None, None, 1)
    assert copy.moving_coefficients.numpy().tobytes() == job.moving_coefficients.numpy().tobytes()
    two = pickle.loads(pickle.dumps(pipeline.Job(scribbles[:3], scribbles[3:], pipeline.Search())))
    assert (len(two.fixed), len(two.moving)) == (3, 40)


@pytest.mark.parametrize("shape", [(47, 31), pytest.param((40, 40), marks=pytest.mark.slow)])
def test_what_a_job_computes_does_not_depend_on_the_number_of_threads(shape, rng):
    """A worker has one thread, the process that submits has several."""
    images, before, found = rng.random((211, *shape), np.float32), torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            job = pipeline.Job(images, None, pipeline.Search(max_shift=2.0))
            tensors = job.index.analysis, job.moving_coefficients, job.centred.moving_coefficients, job.coarse_fixed
            found.append([tensor.numpy().tobytes() for tensor in tensors])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("contrast", ["none", "affine"])
def test_a_pair_does_not_depend_on_how_many_others_are_refined_with_it(contrast, rng, generator):
    # 150 pairs are two whole vectors of 64 and a part; 3 are less than one.
    images = rng.random((9, 13, 17)).astype(np.float32)
    job = pipeline.Job(images, None, Search(group="similarity", contrast=contrast))
    moving, fixed = torch.randint(9, (2, 150), generator=generator)
    poses = parse("similarity").random(150, generator=generator, max_shift=2.0)
    together = pipeline.refine_and_measure(job, moving, fixed, poses)
    alone = pipeline.refine_and_measure(job, moving[:3], fixed[:3], poses[:3])
    last = pipeline.refine_and_measure(job, moving[-1:], fixed[-1:], poses[-1:])
    for all_pairs, first, one in zip(together, alone, last, strict=True):
        assert all_pairs[:3].numpy().tobytes() == first.numpy().tobytes()
        assert all_pairs[-1:].numpy().tobytes() == one.numpy().tobytes()
