"""Images that are copies of others, which count once, and sets that are too small."""

import math

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from sklearn.metrics import adjusted_rand_score

from unpose.align import Search
from unpose.cluster import InvariantClustering
from unpose.cluster.limits import Limits
from unpose.cluster.neighbours import find_neighbours
from unpose.data import posed
from unpose.images import as_batch


def photographs(n, seed):
    """Smooth textures on a plain background, each unlike the others: (n, 25, 25)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:25, :25] - 12
    textures = gaussian_filter(rng.normal(size=(n, 25, 25)), (0, 2, 2))
    return (20 * textures * np.exp(-(rows**2 + columns**2) / 40)).astype(np.float32)


def test_thirty_copies_of_one_image_are_one_group_without_claims():
    model = InvariantClustering().fit(np.repeat(photographs(1, 0), 30, axis=0))
    assert model.n_clusters_ == 1
    assert model.copies_.tolist() == [0] * 30
    assert math.isnan(model.stability_)
    assert model.notes_ == [
        "1 different image is too few to tell how many groups there are and how reliable they are.",
        "29 images are copies of another image; they are not counted in the groups' means.",
    ]


@pytest.fixture(scope="module")
def alone():
    return InvariantClustering(random_state=3).fit(photographs(40, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "turned"])
def test_copies_do_not_change_the_groups_of_the_others(alone, kind):
    images = photographs(40, 1)
    if kind == "exact":
        copies = np.repeat(images[:3], 12, axis=0)
    else:
        copies = posed(images[:3], "se2", copies=12, max_shift=1.0, random_state=0).images * 0.8 + 0.1
    model = InvariantClustering(random_state=3).fit(np.concatenate([images, copies]))
    assert model.copies_.tolist() == [*range(40), *np.repeat([0, 1, 2], 12)]
    assert np.array_equal(model.labels_[40:], np.repeat(model.labels_[:3], 12))
    assert adjusted_rand_score(model.labels_[:40], alone.labels_) == 1.0
    assert model.confidences_[:40].tolist() == model.confidences_[model.copies_][:40].tolist()
    aligned = [model.aligned(np.concatenate([images, copies]), k) for k in range(model.n_clusters_)]
    assert sum(map(len, aligned)) == 76
    for first in range(3):  # a copy is aligned like its original
        rows = np.flatnonzero(model.copies_ == first)
        group = np.flatnonzero(model.labels_ == model.labels_[first])
        stack = aligned[model.labels_[first]][np.searchsorted(group, rows)].reshape(len(rows), -1)
        assert np.corrcoef(stack).min() > 0.97


def test_turned_views_of_a_few_things_are_no_copies():
    views = posed(photographs(3, 2), copies=6, max_shift=1.0)
    model = InvariantClustering(3).fit(views.images)
    assert model.copies_.tolist() == list(range(18))
    assert adjusted_rand_score(views.sources, model.labels_) == 1.0


def test_pictures_that_were_all_saved_twice_are_counted_once():
    """As an image and as a file with losses; half of the images are then like another one."""
    images = photographs(12, 4)
    again = images + np.random.default_rng(0).normal(0, 0.02 * images.std(), images.shape).astype(np.float32)
    model = InvariantClustering(features="pixels").fit(np.concatenate([images, again]))
    assert model.copies_.tolist() == 2 * list(range(12))


def test_views_count_where_some_of_them_are_blurred():
    """A thin bar at another angle is blurred and stretched by interpolation, a square is not."""
    bar, square = np.zeros((2, 20, 20), np.float32)
    bar[4:16, 9:11] = square[6:14, 6:14] = 1
    views = posed(np.stack([bar, square]), copies=8, max_shift=2.0, random_state=8)
    model = InvariantClustering(2, features="pixels").fit(views.images)
    assert model.copies_.tolist() == list(range(16))
    assert adjusted_rand_score(views.sources, model.labels_) == 1.0


@pytest.mark.parametrize("kinds", [3, 2])
def test_few_images_make_no_claim(kinds):
    images = photographs(3, 3)
    if kinds == 2:
        images[1] = images[0] + np.random.default_rng(0).normal(0, 0.3 * images[0].std(), (25, 25))
    model = InvariantClustering().fit(images)
    assert math.isnan(model.stability_)
    assert model.confidences_.tolist() == [0, 0, 0]
    assert "too few" in model.notes_[0]


def test_equal_vectors_are_copies_of_the_first():
    X = np.random.default_rng(0).random((7, 4))
    X[[4, 6]] = X[1]
    X[3] = X[1] + 1e-6
    assert InvariantClustering(2).fit(X).copies_.tolist() == [0, 1, 2, 3, 1, 5, 1]


def neighbours_of(images, **options):
    """The neighbours of images, and how many images were searched each time."""
    calls, stages = [], [""]

    def count(stage, done, total):
        if stage == "search" != stages[-1]:
            calls.append(total)
        stages.append(stage)

    search = Search(group="se2", contrast="gain", progress=count)
    return find_neighbours(images, search, None, None, **options), calls


def with_copies(n, copied):
    """n photographs, then a turned copy of those with the numbers ``copied``, at another brightness."""
    images = photographs(n, 7)
    turned = posed(images[copied], "se2", max_shift=1.0, random_state=0).images * 0.8
    return as_batch(np.concatenate([images, turned.astype(np.float32)]))


def assert_like(found, wanted):
    """Nearly the same lists at nearly the same distances, because the grid of poses is fitted to all images."""
    here, there = found.neighbours, wanted.neighbours
    assert here.indices.shape == there.indices.shape
    shared = [len(np.intersect1d(*lists)) for lists in zip(here.indices, there.indices, strict=True)]
    assert np.mean(shared) > 0.95 * here.indices.shape[1]
    assert np.abs(here.distances / there.distances - 1).mean() < 0.01
    assert np.abs(found.typical_distances / wanted.typical_distances - 1).mean() < 0.01


def test_only_lists_with_a_copy_are_searched_again():
    images = with_copies(90, [3])
    found, searched = neighbours_of(images)
    assert found.first_copies.tolist() == [*range(90), 3]
    assert searched[0] == 91
    assert 1 <= searched[1] <= 22  # the one that has a copy, and those near it
    own = np.arange(90)[:, None]
    assert not (found.neighbours.indices == own).any()
    assert (np.diff(found.neighbours.distances, axis=1) >= 0).all()
    assert_like(found, neighbours_of(images[:90])[0])


def test_with_an_index_only_lists_with_a_copy_are_searched_again():
    images, limits = with_copies(300, [3]), Limits(without_index=250)
    found, searched = neighbours_of(images, limits=limits)
    assert found.first_copies.tolist() == [*range(300), 3]
    assert 1 <= min(searched) <= 75
    assert not (found.neighbours.indices == np.arange(300)[:, None]).any()
    assert_like(found, neighbours_of(images[:300], limits=limits)[0])


def test_many_copies_are_searched_without_at_once():
    images = with_copies(30, np.arange(12))
    found, searched = neighbours_of(images)
    assert found.first_copies.tolist() == [*range(30), *range(12)]
    assert searched[:2] == [42, 30]
    assert_like(found, neighbours_of(images[:30])[0])


def test_lists_of_all_images_only_lose_the_copies():
    images = with_copies(9, [0, 1])  # each list of up to twelve holds all others
    found, searched = neighbours_of(images)
    assert len(searched) == len(found.history)  # one for each round
    assert found.neighbours.indices.shape == (9, 8)
    assert_like(found, neighbours_of(images[:9])[0])


def test_copies_count_where_too_few_images_would_be_left():
    images = with_copies(5, [0, 1])
    assert neighbours_of(images, fewest=6)[0].first_copies.tolist() == list(range(7))
    assert neighbours_of(images, fewest=5)[0].first_copies.tolist() == [*range(5), 0, 1]
