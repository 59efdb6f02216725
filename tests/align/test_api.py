"""The public functions of the search: right poses over whole groups, true distances, contrast, refusal of bad input."""

import math
import threading

import numpy as np
import pytest
import torch

from unpose.align import Search, align, nearest, orbit_distances
from unpose.data import drawings, posed
from unpose.groups import parse
from unpose.images import warp


@pytest.fixture(scope="module")
def glyphs():
    """Five shapes without symmetry on 29 pixels, strokes of different directions and lengths."""
    rng = np.random.default_rng(5)
    images = np.zeros((5, 29, 29), np.float32)
    yy, xx = np.mgrid[:29, :29]
    for image in images:
        for _ in range(4):
            (x0, y0), (x1, y1) = rng.uniform(7, 21, (2, 2))
            for t in np.linspace(0, 1, 25):
                x, y = x0 + t * (x1 - x0), y0 + t * (y1 - y0)
                image[:] = np.maximum(image, np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 2))
    return images


def errors(found, true):
    """Degrees and pixels between poses."""
    gap = np.linalg.inv(true) @ found
    return np.abs(np.degrees(np.arctan2(gap[..., 0, 1], gap[..., 0, 0]))), np.hypot(gap[..., 0, 2], gap[..., 1, 2])


class TestAlign:
    @pytest.mark.parametrize(
        "group", ["se2", "se2+mirror", pytest.param("similarity", marks=pytest.mark.slow), "similarity+mirror"]
    )
    def test_finds_the_pose_over_the_whole_group(self, glyphs, group):
        copies = posed(glyphs, group, copies=2, random_state=1, max_shift=5.0, max_scale=1.3)
        found = align(glyphs[copies.sources], copies.images, group=group, max_scale=1.4)
        np.testing.assert_allclose(found.poses, copies.poses, atol=0.05)
        assert found.converged.all()
        assert (found.margins > 0).all()

    @pytest.mark.parametrize("group", [pytest.param("affine", marks=pytest.mark.slow), "perspective"])
    def test_finds_poses_near_a_similarity(self, glyphs, group):
        copies = posed(glyphs, group, copies=4, random_state=2, max_shift=4.0, max_scale=1.15, max_stretch=1.15)
        found = align(glyphs[copies.sources], copies.images, group=group, max_scale=1.3, max_shift=5.0)
        # the prior pulls the shape towards the start, so the distances are compared, not the poses
        norm = np.linalg.norm(copies.images, axis=(1, 2))
        assert np.median(found.distances / norm) < 0.1
        plain = align(glyphs[copies.sources], copies.images, group="se2")
        assert (found.distances < plain.distances).mean() > 0.9

    def test_translation_only_shifts(self, glyphs):
        copies = posed(glyphs, "translation", copies=3, random_state=3, max_shift=6.0)
        found = align(glyphs[copies.sources], copies.images, group="translation")
        np.testing.assert_allclose(found.poses, copies.poses, atol=0.05)

    def test_bounds_are_kept(self, glyphs):
        copies = posed(glyphs, "se2", copies=4, random_state=4, max_angle=math.pi, max_shift=3.0)
        found = align(glyphs[copies.sources], copies.images, max_angle=0.4, max_shift=2.0)
        degrees, _ = errors(found.poses, np.eye(3))
        assert degrees.max() < 45  # the search ends at 23 degrees; refinement may go some way beyond
        assert np.hypot(*found.poses[:, :2, 2].T).max() <= 3.0
        near = posed(glyphs, "se2", copies=4, random_state=4, max_angle=0.35, max_shift=2.0)
        found = align(glyphs[near.sources], near.images, max_angle=0.4, max_shift=4.0)
        np.testing.assert_allclose(found.poses, near.poses, atol=0.05)

    def test_every_image_onto_every_reference(self, glyphs):
        copies = posed(glyphs, "se2", random_state=5, max_shift=4.0)
        found = align(copies.images, glyphs, every=True)
        assert found.poses.shape == (5, 5, 3, 3)
        assert found.distances.shape == found.margins.shape == found.converged.shape == (5, 5)
        assert len(found.alternatives) == 25
        assert (found.distances.argmin(1) == np.arange(5)).all()
        pairwise = align(copies.images, glyphs)
        np.testing.assert_allclose(np.diagonal(found.distances), pairwise.distances, atol=1e-5)
        onto_one = align(copies.images, glyphs[:1])
        np.testing.assert_allclose(onto_one.distances, found.distances[:, 0], atol=1e-5)

    def test_the_distance_is_that_of_the_pose_at_full_size(self, glyphs):
        copies = posed(glyphs, "se2", random_state=6, max_shift=3.0)
        found = align(glyphs[::-1].copy(), copies.images)  # pairs of different shapes, too
        moved = warp(torch.from_numpy(glyphs[::-1].copy()), torch.from_numpy(found.poses).float()).numpy()
        literal = np.linalg.norm(moved - copies.images, axis=(1, 2))
        np.testing.assert_allclose(found.distances, literal, rtol=0.02)
        assert (found.distances >= literal - 1e-4).all()  # what leaves the frame still counts

    def test_symmetric_objects_have_alternatives(self):
        bar = np.zeros((1, 28, 28), np.float32)
        bar[0, 7:21, 12:16] = 1.0
        found = align(bar, bar)
        degrees, _ = errors(np.concatenate([found.poses, *found.alternatives]), np.eye(3))
        np.testing.assert_allclose(np.sort(degrees), [0, 180], atol=1)
        assert found.margins[0] < 0.05 * np.linalg.norm(bar)
        cross = np.maximum(bar, np.rot90(bar, axes=(1, 2)))
        found = align(cross, cross)
        degrees, _ = errors(np.concatenate([found.poses, *found.alternatives]), np.eye(3))
        np.testing.assert_allclose(np.sort(degrees), [0, 90, 90, 180], atol=1)

    @pytest.mark.parametrize("ground", [0.0, 0.5, 0.9])
    def test_a_bright_ground_that_the_contrast_ignores_makes_no_object_symmetric(self, ground):
        letter, bar = np.zeros((2, 1, 31, 31), np.float32)
        letter[0, 7:23, 11:14] = letter[0, 20:23, 11:19] = bar[0, 7:21, 13:17] = 0.1
        for shape, count in ((letter, 0), (bar, 1)):
            found = align(ground + shape, ground + shape, contrast="offset")
            assert [len(others) for others in found.alternatives] == [count]

    @pytest.mark.parametrize("contrast", ["offset", "affine"])
    def test_where_nothing_overlaps_no_pose_is_better_than_another(self, contrast):
        corners = np.zeros((2, 16, 16), np.float32)
        corners[0, :3, :3] = corners[1, 13:, 13:] = 1
        found = align(corners[:1], corners[1:], contrast=contrast, max_shift=19.0, group="translation")
        assert np.isinf(found.distances[0])
        assert found.margins[0] == 0
        assert len(found.alternatives[0]) == 0
        assert not found.converged[0]

    def test_asymmetric_objects_have_a_margin_and_no_alternatives(self, glyphs):
        found = align(glyphs, glyphs)
        assert all(len(others) == 0 for others in found.alternatives)
        assert (found.margins > 0.1 * np.linalg.norm(glyphs, axis=(1, 2))).all()

    @pytest.mark.parametrize(
        "shape", [(33, 40), (90, 128), *(pytest.param(s, marks=pytest.mark.slow) for s in ((40, 56), (150, 150)))]
    )
    def test_any_size_and_colour(self, shape):
        side = min(shape)
        originals = drawings(side)
        copies = posed(originals, "se2", copies=2, shape=shape, random_state=7, max_shift=0.08 * side)
        still = posed(originals, "se2", copies=2, shape=shape, max_angle=0.0, max_shift=0.0).images
        found = align(still, copies.images)
        degrees, pixels = errors(found.poses, copies.poses)
        assert degrees.max() < 0.5
        assert pixels.max() < 0.1 * max(1, side / 40)

    @pytest.mark.parametrize(
        ("contrast", "change"),
        [
            pytest.param("offset", lambda images: images + 0.3, marks=pytest.mark.slow),
            pytest.param("gain", lambda images: 0.4 * images, marks=pytest.mark.slow),
            ("affine", lambda images: 0.5 * images + 0.2),
        ],
    )
    def test_changes_of_brightness_are_ignored(self, glyphs, contrast, change):
        textured = glyphs + 0.1 * np.mgrid[:29, :29][0].astype(np.float32) / 29
        copies = posed(
            np.pad(textured, ((0, 0), (12, 12), (12, 12)), mode="edge"),
            "se2",
            copies=2,
            random_state=8,
            shape=(29, 29),
            max_angle=0.6,
            max_shift=3.0,
        )
        still = textured[copies.sources]
        blind = align(still, change(copies.images), contrast=contrast, mask="disc", max_angle=1.0)
        degrees, pixels = errors(blind.poses, copies.poses)
        assert np.median(degrees) < 1.0
        assert np.median(pixels) < 0.3
        clean = align(still, copies.images, contrast=contrast, mask="disc", max_angle=1.0)
        np.testing.assert_allclose(np.median(blind.distances), np.median(clean.distances), rtol=0.1, atol=0.05)
        seeing = align(still, change(copies.images), contrast="none", mask="disc", max_angle=1.0)
        assert np.median(seeing.distances) > 2 * np.median(blind.distances)

    def test_the_background_outside_the_mask_is_ignored(self, glyphs, rng):
        copies = posed(glyphs, "se2", random_state=9, max_shift=2.0)
        mask = np.hypot(*(np.mgrid[:29, :29] - 14)) < 12.5
        noisy = np.where(mask, copies.images, rng.random(copies.images.shape)).astype(np.float32)
        found = align(glyphs, noisy, mask=mask)
        degrees, _ = errors(found.poses, copies.poses)
        assert np.median(degrees) < 2

    def test_constant_images_get_the_identity(self, glyphs):
        flat = np.stack([np.zeros((29, 29)), np.full((29, 29), 0.7), glyphs[0]]).astype(np.float32)
        found = align(flat, np.stack([glyphs[0], glyphs[0], np.zeros((29, 29), np.float32)]))
        np.testing.assert_array_equal(found.poses, np.broadcast_to(np.eye(3), (3, 3, 3)))
        np.testing.assert_array_equal(found.margins, 0)
        assert not found.converged.any()
        assert np.isfinite(found.distances).all()

    @pytest.mark.parametrize("way", [{}, {"every": True}, {"to": np.arange(70) % 5}])
    def test_the_grid_is_searched_by_n_jobs_threads_which_change_no_byte(self, glyphs, way):
        copies = posed(glyphs, "se2", copies=14, random_state=7, max_shift=2.0).images
        goals = copies[::-1].copy() if way == {} else copies[::14].copy()

        def workers():
            return sum(thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate())

        own = workers()
        found, threads = {}, {}
        for n_jobs in (1, 3):
            seen = []

            def watch(stage, done, total, seen=seen):
                seen.append((stage, done, workers() - own))

            found[n_jobs] = align(copies, goals, n_jobs=n_jobs, progress=watch, **way)
            search = [done for stage, done, _ in seen if stage == "search"]
            assert search == sorted(search)
            assert search[-1] == found[n_jobs].distances.size
            threads[n_jobs] = max(count for stage, _, count in seen if stage == "search")
        assert threads[1] == 1
        assert 1 < threads[3] <= 3
        for name in ("poses", "distances", "margins", "converged"):
            assert getattr(found[1], name).tobytes() == getattr(found[3], name).tobytes()
        assert [each.tobytes() for each in found[1].alternatives] == [each.tobytes() for each in found[3].alternatives]


class TestNearest:
    def test_neighbours_are_copies(self, glyphs):
        copies = posed(glyphs, "se2", copies=6, random_state=1, max_shift=4.0)
        found = nearest(copies.images, 5)
        assert found.indices.shape == found.distances.shape == (30, 5)
        assert (copies.sources[found.indices] == copies.sources[:, None]).all()
        assert not (found.indices == np.arange(30)[:, None]).any()
        assert (np.diff(found.distances, axis=1) >= 0).all()
        expected = copies.poses[:, None] @ np.linalg.inv(copies.poses[found.indices])
        degrees, pixels = errors(found.poses, expected)
        assert np.median(degrees) < 0.5
        assert np.median(pixels) < 0.1

    def test_neighbours_among_other_images(self, glyphs):
        copies = posed(glyphs, "se2", copies=3, random_state=2, max_shift=4.0)
        found = nearest(copies.images, 1, others=glyphs)
        assert (found.indices[:, 0] == copies.sources).all()
        np.testing.assert_allclose(found.poses[:, 0], copies.poses, atol=0.05)

    def test_candidates_find_the_same_where_centroids_are_reliable(self, glyphs):
        copies = posed(glyphs, "se2", copies=4, random_state=3, max_shift=4.0)
        everything, some = nearest(copies.images, 3), nearest(copies.images, 3, candidates=8)
        overlap = [len(set(a) & set(b)) / 3 for a, b in zip(everything.indices, some.indices, strict=True)]
        assert np.mean(overlap) > 0.95

    def test_the_same_bytes_for_any_number_of_threads_and_any_budget(self, glyphs):
        copies = posed(glyphs, "se2", copies=13, random_state=4, max_shift=4.0)  # 65 images: two tiles
        images = copies.images[:, ::2, ::2].copy()
        first, *rest = (
            nearest(images, 3, max_shift=2.0, **options)
            for options in ({}, {"n_jobs": 1, "memory": "2GB"}, {"n_jobs": 3, "memory": 8e9})
        )
        for other in rest:
            assert np.array_equal(first.indices, other.indices)
            assert np.array_equal(first.distances, other.distances)
            assert np.array_equal(first.poses, other.poses)

    @pytest.mark.parametrize(
        "way", [{}, {"quick": True}, {"candidates": 4}, {"candidates": "index"}, {"refine": False}]
    )
    def test_every_way_gives_the_same_types(self, glyphs, way):
        found = nearest(glyphs.astype(np.float32), np.int64(2), **way)
        assert [found.indices.dtype, found.distances.dtype, found.poses.dtype] == [np.int64, np.float64, np.float64]

    def test_without_refinement_distances_are_those_at_the_poses(self, glyphs):
        copies = posed(glyphs, "se2", copies=3, random_state=5, max_shift=4.0)
        rough, fine = nearest(copies.images, 2, refine=False), nearest(copies.images, 2)
        assert rough.distances.mean() > fine.distances.mean()
        moved = warp(torch.from_numpy(copies.images[rough.indices[:, 0]]), torch.from_numpy(rough.poses[:, 0]).float())
        literal = np.linalg.norm(moved.numpy() - copies.images, axis=(1, 2))
        np.testing.assert_allclose(rough.distances[:, 0], literal, rtol=0.02)

    def test_progress_counts_up_to_the_end(self, glyphs):
        seen = []
        nearest(posed(glyphs, copies=2).images, 2, progress=lambda *report: seen.append(report))
        assert {stage for stage, _, _ in seen} == {"search", "refine"}
        assert [done == total for stage, done, total in seen if stage == "refine"][-1]

    @pytest.mark.slow
    def test_neighbours_do_not_depend_on_pose(self, real_data):
        digits = real_data("mnist.npz")["x_test"][:80].astype(np.float32) / 255
        before, after = (posed(digits, "se2", shape=(40, 40), random_state=s, max_shift=4.0).images for s in (1, 2))
        a, b = nearest(before, 5).indices, nearest(after, 5).indices
        assert np.mean([len(set(x) & set(y)) / 5 for x, y in zip(a, b, strict=True)]) > 0.93


class TestOrbitDistances:
    @pytest.mark.parametrize("group", ["se2", pytest.param("similarity", marks=pytest.mark.slow)])
    def test_a_matrix_of_distances(self, glyphs, group):
        copies = posed(glyphs[:3], group, copies=2, random_state=1, max_shift=3.0, max_scale=1.2)
        distances, poses = orbit_distances(copies.images, group=group)
        np.testing.assert_array_equal(distances, distances.T)
        np.testing.assert_array_equal(np.diag(distances), 0)
        np.testing.assert_allclose(
            poses @ poses.transpose(1, 0, 2, 3), np.broadcast_to(np.eye(3), (6, 6, 3, 3)), atol=1e-4
        )
        same = copies.sources[:, None] == copies.sources
        assert distances[same].max() < 0.5 * distances[~same].min()

    def test_between_two_sets(self, glyphs):
        distances, poses = orbit_distances(glyphs[:2], glyphs)
        assert distances.shape == (2, 5)
        assert poses.shape == (2, 5, 3, 3)
        np.testing.assert_allclose(distances[[0, 1], [0, 1]], 0, atol=0.05)

    def test_pushing_images_out_of_the_frame_does_not_bring_them_closer(self, glyphs):
        near, far = (orbit_distances(glyphs[:2], max_shift=shift)[0][0, 1] for shift in (5.0, 16.0))
        assert far > 0.9 * near


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.full((3, 8, 8), np.nan)}, "image 0 has pixels that are NaN"),
        ({"images": np.zeros((0, 8, 8))}, "no images"),
        ({"images": np.zeros((3, 0, 8))}, "no pixels"),
        ({"k": 3}, "k must be between 1 and 2"),
        ({"k": 0}, "k must be between 1 and 2"),
        ({"max_shift": -1.0}, "max_shift"),
        ({"max_angle": -0.1}, "max_angle"),
        ({"max_scale": 0.5}, "max_scale"),
        ({"contrast": "sepia"}, "contrast must be one of"),
        ({"mask": "square"}, "mask must be"),
        ({"mask": np.zeros((8, 8))}, "mask must be"),
        ({"mask": np.ones((3, 3))}, "mask must be"),
        ({"group": "c4"}, "continuous group"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"memory": "much"}, "memory must be"),
        ({"memory": "1MB"}, "more than the budget"),
        ({"candidates": 1, "k": 2}, "candidates"),
        ({"candidates": "idx"}, "candidates must be a whole number, \"index\" or None, got 'idx'"),
        ({"candidates": 2.0}, "candidates must be a whole number"),
        ({"k": 1.0}, "k must be a whole number, got 1.0"),
        ({"k": 1.0, "candidates": "index"}, "k must be a whole number, got 1.0"),
        ({"k": "2"}, "k must be a whole number, got '2'"),
        ({"others": np.zeros((2, 9, 9))}, "one size"),
    ],
)
def test_bad_input_is_refused_with_a_reason(change, message):
    arguments = {"images": np.random.default_rng(0).random((3, 8, 8)), "k": 1} | change
    with pytest.raises(ValueError, match=message):
        nearest(**arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": "c4"}, "continuous group"),
        ({"max_angle": float("nan")}, "max_angle"),
        ({"max_shift": math.inf}, "max_shift"),
        ({"contrast": "sepia"}, "contrast must be one of"),
        ({"mask": "square"}, "mask must be"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"n_jobs": 1.5}, "n_jobs must be a whole number or None, got 1.5"),
        ({"max_angle": "1"}, "max_angle must be a number of at least 0, got '1'"),
        ({"max_shift": "2"}, "max_shift must be a number of at least 0, got '2'"),
        ({"max_scale": None}, "max_scale must be a number of at least 1, got None"),
        ({"memory": "much"}, "memory must be"),
    ],
)
def test_settings_are_checked_when_a_search_is_made(settings, message):
    with pytest.raises(ValueError, match=message):
        Search(**settings)


def test_a_search_and_its_settings_as_keywords_give_the_same(glyphs):
    settings = {"group": "similarity", "max_scale": 1.2, "contrast": "gain"}
    one = align(glyphs[:2], glyphs[1:3], max_shift=4.0, **settings)
    two = align(glyphs[:2], glyphs[1:3], search=Search(max_shift=9.0, **settings), max_shift=4.0)
    assert one.poses.tobytes() == two.poses.tobytes()


def test_images_and_references_of_different_number_are_refused(glyphs):
    with pytest.raises(ValueError, match="every=True"):
        align(glyphs[:3], glyphs[:2])


def test_the_group_of_the_poses_is_the_one_asked_for(glyphs):
    for group in ("translation", "similarity+mirror", "affine"):
        poses = align(glyphs[:2], glyphs[1:3], group=group, max_shift=3.0).poses
        assert parse(group).contains(torch.from_numpy(poses), atol=1e-3).all()


def test_to_and_every_exclude_each_other(glyphs):
    with pytest.raises(ValueError, match="one or the other"):
        align(glyphs, glyphs, to=np.zeros(len(glyphs), int), every=True)
