"""The search as a whole: altered copies are found with their poses, other pictures are not."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from kit.commands import contents, unpose
from kit.images import write_image
from unpose.dedupe import (
    Quality,
    choose_keeper,
    compare,
    describe,
    duplicate_sets,
    find_candidates,
    find_duplicates,
    find_regions,
)
from unpose.groups import parse
from unpose.images import warp


def stamped(image):
    image = image.copy()
    ImageDraw.Draw(image).rectangle((90, 80, 127, 94), fill=255)
    return image


ALTERED = {
    "turned": lambda image: image.rotate(37, Image.Resampling.BICUBIC, expand=True),
    "turned in its frame": lambda image: image.rotate(-64, Image.Resampling.BICUBIC),
    "mirrored": ImageOps.mirror,
    "smaller": lambda image: image.resize((75, 57), Image.Resampling.LANCZOS),
    "cropped": lambda image: image.crop((12, 3, 146, 104)),
    "darker": lambda image: image.point(lambda value: 0.6 * value + 9),
    "bordered": lambda image: ImageOps.expand(image, 13, 255),
    "stamped": stamped,
}


def test_every_alteration_is_found_at_its_pose_and_nothing_else(synthetic):
    originals = [synthetic.as_pil(synthetic.picture(seed)) for seed in range(len(ALTERED) + 3)]
    copies = [alter(original) for alter, original in zip(ALTERED.values(), originals, strict=False)]
    found = find_duplicates([synthetic.as_floats(image) for image in originals + copies])
    assert [(match.one, match.two - len(originals)) for match in found] == [(k, k) for k in range(len(copies))]
    by_name = dict(zip(ALTERED, found, strict=True))
    angle = {name: math.degrees(math.atan2(match.pose[0, 1], match.pose[0, 0])) for name, match in by_name.items()}
    assert angle["turned"] == pytest.approx(-37, abs=0.3)  # the pose turns the copy back
    assert angle["turned in its frame"] == pytest.approx(64, abs=0.3)
    assert np.linalg.det(by_name["mirrored"].pose) == pytest.approx(-1, abs=0.02)
    assert by_name["smaller"].pose[0, 0] == pytest.approx(149 / 75, rel=0.01)
    shift = by_name["cropped"].pose[:2, 2]  # the centre of the crop in the original
    assert shift == pytest.approx([(12 + 146) / 2 - 149 / 2, (3 + 104) / 2 - 113 / 2], abs=0.3)


def test_no_pictures_and_one_picture_have_no_duplicates(synthetic):
    assert find_duplicates([]) == []
    assert find_duplicates([synthetic.picture(0)]) == []


def broken(picture, value):
    picture = picture.copy()
    picture[3, 4] = value
    return picture


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda picture: broken(picture, np.nan), "picture 1 has pixels that are NaN or infinite"),
        (lambda picture: broken(picture, -np.inf), "picture 1 has pixels that are NaN or infinite"),
        (lambda picture: picture[0], r"picture 1 must be \(h, w\) or \(h, w, 3\), got shape \(149,\)"),
        (
            lambda picture: np.zeros((*picture.shape, 4)),
            r"\(h, w, 3\), got shape .*; leave the fourth channel out",
        ),
        (lambda picture: picture[:0], "picture 1 has no pixels"),
        (lambda picture: np.array([["a"]]), "picture 1 must be numbers"),
        (lambda picture: 1j * picture, "picture 1 must be real numbers"),
    ],
)
def test_what_is_no_picture_is_refused_with_its_number(synthetic, change, message):
    picture = synthetic.picture(0)
    with pytest.raises(ValueError, match=message):
        find_duplicates([picture, change(picture), picture])


@pytest.mark.parametrize("threshold", [95, -0.1, float("nan"), "0.9", None])
def test_a_threshold_that_is_no_probability_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold must be a probability from 0 to 1"):
        find_duplicates([], threshold=threshold)


def test_huge_values_and_flat_pictures_beyond_the_range_are_read(synthetic):
    picture = synthetic.picture(0).astype(np.float64)
    huge = np.full((70, 90), 3e5)
    found = find_duplicates([picture, picture * 3e38, huge, huge])
    assert [(match.one, match.two) for match in found] == [(0, 1)]


def test_pictures_without_texture_are_never_called_the_same():
    ramp = np.linspace(0.2, 0.25, 90, dtype=np.float32)[None].repeat(70, 0)
    assert find_duplicates([np.full((70, 90), 0.5), np.full((70, 90), 0.5), ramp, ramp + 0.001]) == []


def rod(seed, size=160):
    """A rod with ends and stripes of its own on a dark ground, as plankton has them: much alike, and not the same."""
    rng = np.random.default_rng(seed)
    y, x = (np.indices((size, size)) - (size - 1) / 2) / size
    width = 0.05 + 0.02 * np.cos(2 * np.pi * (x * rng.uniform(2, 4) + rng.random()))
    inside = (np.abs(x) < 0.36) & (np.abs(y) < width)
    stripes = 0.6 + 0.35 * np.cos(2 * np.pi * (x * rng.uniform(5, 8) + rng.random()))
    picture = Image.fromarray((255 * inside * stripes).astype(np.uint8)).filter(ImageFilter.GaussianBlur(2))
    return picture.rotate(rng.uniform(0, 360), Image.Resampling.BICUBIC)


def test_things_that_look_alike_are_told_apart(synthetic):
    rods = [rod(seed) for seed in range(9)]
    copies = [rods[2].rotate(70, Image.Resampling.BICUBIC), ImageOps.mirror(rods[5]).point(lambda v: 0.7 * v)]
    found = find_duplicates([synthetic.as_floats(image) for image in rods + copies])
    assert [(match.one, match.two) for match in found] == [(2, 9), (5, 10)]
    assert all(match.comparison.contrast_spread < 0.1 for match in found)


def test_the_same_border_or_corners_do_not_make_two_pictures_the_same(synthetic):
    rods = [rod(seed) for seed in range(4)]
    framed = [ImageOps.expand(image, 12, 255) for image in rods[:2]]
    turned = [image.rotate(33, Image.Resampling.BICUBIC, expand=True, fillcolor=255) for image in rods[2:]]
    assert find_duplicates([synthetic.as_floats(image) for image in framed + turned]) == []
    both = find_duplicates([synthetic.as_floats(image) for image in [framed[0], rods[0], turned[1], rods[3]]])
    assert [(match.one, match.two) for match in both] == [(0, 1), (2, 3)]


@pytest.fixture(scope="module")
def frame(synthetic):
    picture = synthetic.picture(6, (80, 96))
    return picture, find_regions(picture)[0]


def test_the_residual_ignores_one_change_of_contrast_and_sees_several(rng):
    one, other = rng.random((2, 80, 96)).astype(np.float32)
    region = find_regions(one)[0]

    def residual_and_spread(two):
        found = compare(one, two.astype(np.float32), np.eye(3), region, region)
        return found.residual, found.contrast_spread

    assert residual_and_spread(0.4 * one + 0.2) == pytest.approx((0, 0), abs=0.05)
    assert residual_and_spread(other)[0] == pytest.approx(1, abs=0.05)
    halves = residual_and_spread(one * np.where(np.arange(96) < 48, 1, 0.4))
    assert halves == pytest.approx((0.096, np.log(1 / 0.4) / 2), abs=0.1)  # but for the margins and the seam


def test_frames_agree_at_the_pose_between_them_and_not_beside_it(frame):
    picture, region = frame
    pose = parse("se2").exp(torch.tensor([2.3, -1.7, 0.6], dtype=torch.float64))
    moved = warp(torch.from_numpy(picture), pose.float()).numpy()
    found = compare(moved, picture, pose.numpy(), region, region)
    assert found.residual < 0.01
    assert found.correlation > 0.995
    beside = parse("se2").exp(torch.tensor([4.3, -1.7, 0.6], dtype=torch.float64)).numpy()
    assert compare(moved, picture, beside, region, region).residual > 0.1


def test_pairs_of_two_old_pictures_are_left_out(synthetic):
    frames = [synthetic.picture(0), synthetic.picture(0) * 0.9, synthetic.picture(0) * 0.8]
    entries = describe(frames)
    found = find_candidates(entries.vectors, entries.owners, is_new=np.array([False, False, True])[entries.owners])
    pairs = {
        tuple(sorted(pair)) for pair in zip(entries.owners[found.queries], entries.owners[found.entries], strict=True)
    }
    assert pairs == {(0, 2), (1, 2)}


def test_a_border_and_turned_corners_are_found(synthetic):
    image = synthetic.as_pil(synthetic.picture(5))
    (framed,) = find_regions(synthetic.as_floats(ImageOps.expand(image, (7, 11, 7, 11), 20)))
    assert (framed.half_width, framed.half_height) == pytest.approx((149 / 2, 113 / 2), abs=1)
    (turned,) = find_regions(synthetic.as_floats(image.rotate(25, Image.Resampling.BICUBIC, expand=True)))
    assert sorted((turned.half_width, turned.half_height)) == pytest.approx([113 / 2, 149 / 2], abs=1.5)
    assert math.degrees(turned.angle) % 90 == pytest.approx(25, abs=1)
    assert len(find_regions(synthetic.picture(5))) == 1
    assert len(find_regions(np.zeros((30, 40)))) == 1


def test_inverted_lists_find_what_the_whole_comparison_finds():
    random = np.random.default_rng(0)
    vectors = {"whole": random.normal(size=(301, 15, 48)), "parts": random.normal(size=(301, 9, 32))}
    for each in vectors.values():
        each[201:] = each[:100] + 0.1 * random.normal(size=each[201:].shape)  # copies
        each *= 5

    def pairs(**options):
        found = find_candidates(vectors, np.arange(301), **options)
        return set(zip(found.queries.tolist(), found.entries.tolist(), found.layers.tolist(), strict=True))

    exact, quick = pairs(), pairs(exact=100)
    copies = {
        (one, other, layer) for k in range(100) for layer in range(2) for one, other in ((k, k + 201), (k + 201, k))
    }
    assert copies <= exact
    assert len(quick & exact) >= 0.98 * len(exact)
    assert quick <= exact


def test_the_results_are_the_same_bytes_for_any_number_of_jobs(synthetic, tmp_path):
    for seed in range(5):
        original = synthetic.as_pil(synthetic.picture(seed))
        write_image(tmp_path / "photos" / f"{seed}.png", synthetic.as_floats(original))
        turned = original.rotate(90 * seed, expand=True)
        write_image(tmp_path / "photos" / "copies" / f"{9 - seed}.png", synthetic.as_floats(turned))
    (tmp_path / "photos" / "torn.png").write_bytes(b"no image")
    for jobs in (1, 2):
        found = unpose("dedupe", tmp_path / "photos", "-o", tmp_path / f"found{jobs}", "--jobs", jobs)
        assert "5 sets of duplicates" in found.words
    one, two = (contents(tmp_path / f"found{jobs}") for jobs in (1, 2))
    assert {"report.html", "duplicates.csv", "duplicates.json", "left-alone.csv", "state.json"} < one.keys()
    assert one == two


def test_the_copy_to_keep():
    def keep(*qualities):
        return choose_keeper([Quality(*each, name=f"{k}.jpg") for k, each in enumerate(qualities)])

    assert keep((100, 1, 3), (400, 0.1, 9))[0] == 1
    assert keep((100, 0.3, 3), (98, 0.5, 9)) == (1, "sharpest of those that are equally large")
    assert keep((100, 0.5, 3), (98, 0.5, 2)) == (1, "oldest of those that are equally large and sharp")
    assert keep((100, 0.5, 3), (100, 0.5, 3))[0] == 0
    assert duplicate_sets([]) == []
