"""Background and contrast: invariance to factor and offset, dark on light, and constant images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpose.images import Light, common_light_difference, match_light, measure_light

LIGHT_ON_DARK = Light(0.0, 0.9, 1.0)


def differs_in_light(images, light):
    """Which images are changed when they are matched alone, for a ground or a contrast beyond those of others: (n,)."""
    return np.array([(match_light(image[None], light) != image).any() for image in images])


def ground_and_contrast(images):
    """Those of each image: (2, n)."""
    found = [measure_light(image[None]) for image in images]
    return np.array([[each.ground for each in found], [each.contrast for each in found]])


def figures(count=5, shape=(13, 17), seed=3):
    """Bars of several strengths on a ground of zero, none at the border: (count, 13, 17)."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, *shape), np.float32)
    images[:, 3:9, 4:7] = rng.uniform(0.6, 0.9, (count, 6, 3))
    return images


@given(factor=st.floats(0.2, 1.0), sign=st.sampled_from([-1, 1]), offset=st.floats(0.4, 2))
def test_matching_removes_factor_offset_and_polarity(factor, sign, offset):
    images = figures()
    seen = (sign * factor * images + offset).astype(np.float32)
    peak = ground_and_contrast(images)[1][:, None, None]
    assert np.allclose(match_light(seen, LIGHT_ON_DARK), (0.9 * images / peak).clip(0, 0.9), atol=2e-5)


@pytest.mark.parametrize("light", [LIGHT_ON_DARK, Light(0.75, -0.5, 1.0)], ids=["light on dark", "dark on light"])
def test_matched_images_have_the_light_asked_for(light):
    matched = match_light(np.float32(light.contrast < 0) + 0.4 - figures() / 2, light)
    found = measure_light(matched)
    assert (found.ground, found.contrast, found.agreement) == pytest.approx((light.ground, light.contrast, 1), abs=5e-3)
    assert not differs_in_light(matched, light).any()
    low, high = sorted((light.ground, light.ground + light.contrast))
    assert matched.min() >= low - 1e-6
    assert matched.max() <= high + 1e-6


def test_images_are_compared_one_by_one():
    images = np.concatenate([figures(2), 0.8 - 0.5 * figures(1), 0.1 * figures(1), 0.4 + 0.6 * figures(1)])
    assert differs_in_light(images, LIGHT_ON_DARK).tolist() == [False, False, True, True, True]


def test_a_constant_image_becomes_all_ground():
    flat = np.full((2, 7, 11), 0.3, np.float32)
    assert np.array_equal(match_light(flat, Light(0.25, 0.5, 1.0)), np.full((2, 7, 11), np.float32(0.25)))
    assert differs_in_light(flat, LIGHT_ON_DARK).all()


def test_colours_and_bytes_count_like_grey_floats():
    images = figures()
    ground, contrast = ground_and_contrast(images)
    pixels = np.rint(255 * images).astype(np.uint8)
    for same in (np.repeat(images[..., None], 3, axis=-1), pixels):
        found = ground_and_contrast(same)
        assert np.allclose(found[0], ground, atol=1 / 255)
        assert np.allclose(found[1], contrast, atol=1 / 255)


@pytest.mark.parametrize(("dtype", "full"), [(np.uint8, 255), (np.uint16, 65535), (bool, 1)])
@pytest.mark.parametrize("colour", [False, True])
def test_whole_numbers_are_matched_like_floats_and_keep_their_type(dtype, full, colour):
    light = Light(0.1, 0.8, 1.0, (0.05, 0.15), (0.7, 0.85))
    images = np.concatenate([0.1 + figures(3), 1 - figures(2)])
    images = np.rint(full * (np.stack([images, 0.9 * images, images], -1) if colour else images)).astype(dtype)
    before = images.copy()
    matched = match_light(images, light)
    expected = match_light(images / np.float32(full), light)
    assert matched.dtype == dtype
    assert np.abs(matched / np.float32(full) - expected).max() <= 0.51 / full
    same = ~differs_in_light(images, light)
    assert np.array_equal(matched[same], images[same])
    assert np.array_equal(images, before)


def test_images_of_both_polarities_share_no_light():
    mixed = np.concatenate([figures(4), 1 - figures(3)])
    assert not measure_light(mixed).is_common
    assert common_light_difference(1 - figures(), measure_light(mixed)) is None
    assert measure_light(figures()).is_common
    assert str(measure_light(1 - figures())).startswith("dark on light (ground 1.00")


# Sets of images of one kind each, (n, 16, 16[, 3]), whose light varies ------------------------------------------------


def blobs(rng, n):
    """Round figures of several sizes that stay inside the frame, (n, 16, 16), from 0 to 1."""
    rows, columns = np.mgrid[:16, :16]
    row, column, width = (rng.uniform(*ends, (n, 1, 1)) for ends in ((6, 10), (6, 10), (1.5, 2.5)))
    return np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * width**2))


def each(rng, n, low, high):
    return rng.uniform(low, high, (n, 1, 1))


def textures(rng, n):
    from scipy.ndimage import gaussian_filter

    smooth = gaussian_filter(rng.standard_normal((n, 16, 16)), (0, 2, 2))
    return 0.5 + smooth / (6 * smooth.std((1, 2), keepdims=True))


def stained(rng, n):
    """Purple figures on pink grounds of several brightnesses."""
    pink, purple = np.array([0.95, 0.75, 0.85]), np.array([0.35, 0.15, 0.55])
    share = blobs(rng, n)[..., None]
    return each(rng, n, 0.6, 1.0)[..., None] * (pink + share * (purple - pink))


def either(rng, n, first, second):
    return np.where(rng.random((n, 1, 1)) < 0.5, first, second)


SETS = {
    "digits-like": lambda rng, n: each(rng, n, 0.8, 1.0) * blobs(rng, n),
    "uniform grounds of any brightness": lambda rng, n: each(rng, n, 0.0, 0.6) + 0.4 * blobs(rng, n),
    "two grounds": lambda rng, n: either(rng, n, 0.1, 0.6) + 0.3 * blobs(rng, n),
    "dark and light grounds": lambda rng, n: either(rng, n, blobs(rng, n), 1 - blobs(rng, n)),
    "one in twenty inverted": lambda rng, n: np.where(
        rng.random((n, 1, 1)) < 0.05, 1 - blobs(rng, n), 0.2 + 0.7 * blobs(rng, n)
    ),
    "weak and strong contrasts": lambda rng, n: 0.3 + each(rng, n, 0.02, 0.7) * blobs(rng, n),
    "ink on paper": lambda rng, n: each(rng, n, 0.7, 0.95) - each(rng, n, 0.3, 0.6) * blobs(rng, n),
    "noise": lambda rng, n: rng.random((n, 16, 16)),
    "textures like photographs": textures,
    "dark textures": lambda rng, n: each(rng, n, 0.1, 1.0) * textures(rng, n),
    "stained cells": stained,
    "fluorescence": lambda rng, n: rng.gamma(2, 0.02, (n, 1, 1)) + rng.gamma(3, 0.1, (n, 1, 1)) * blobs(rng, n),
    "constant images among them": lambda rng, n: np.where(rng.random((n, 1, 1)) < 0.3, 0.2, 0.2 + blobs(rng, n) / 2),
}


def kept(light):
    """The light as files of older versions have it, without ranges."""
    return Light(light.ground, light.contrast, light.agreement)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("count", [7, pytest.param(100, marks=pytest.mark.slow)])
def test_images_of_the_same_kind_do_not_differ_and_stay_as_they_are(name, count):
    rng = np.random.default_rng(11)
    for _ in range(5):
        light = measure_light(SETS[name](rng, 300).astype(np.float32))
        images = SETS[name](rng, count).astype(np.float32)
        assert common_light_difference(images, light) is None
        assert common_light_difference(images, kept(light)) is None
        different = differs_in_light(images, light)
        assert different.mean() <= 1 / 7
        assert np.array_equal(match_light(images, light)[~different], images[~different])
        if light.is_common and count == 100:
            assert np.array_equal(match_light(images, kept(light)), images)


@pytest.mark.parametrize(
    ("file", "array"),
    [("chula_rbc.npz", "x"), ("cifar10_test.npz", "x_test"), ("fashion_mnist.npz", "x_train"), ("mnist.npz", "x_train"),
     ("mpeg7_shapes.npz", "x"), ("osteosarcoma_cells.npz", "x"), ("plankton_ndsb.npz", "x")],
)  # fmt: skip
def test_real_images_of_the_same_kind_do_not_differ(real_data, file, array):
    pixels = real_data(file)[array]
    images = pixels[np.random.default_rng(0).permutation(len(pixels))[:900]] / np.float32(255)
    light, others = measure_light(images[:450]), images[450:]
    assert common_light_difference(others, light) is None
    assert common_light_difference(others, kept(light)) is None
    changed = (match_light(others, light) != others).any(axis=tuple(range(1, others.ndim)))
    assert changed.mean() < 0.02


@pytest.mark.parametrize(
    ("trained", "change", "words"),
    [
        ("digits-like", lambda images: 0.9 - 0.8 * images, "are dark on light and not light on dark"),
        ("ink on paper", lambda images: 1 - images, "are light on dark and not dark on light"),
        ("digits-like", lambda images: 0.4 + 0.6 * images, "have a lighter background"),
        ("ink on paper", lambda images: images - 0.4, "have a darker background"),
        ("digits-like", lambda images: 0.3 * images, "have a weaker contrast"),
        (
            "uniform grounds of any brightness",
            lambda images: 0.3 + 2 * (images - images[:, :1, :1]),
            "have a stronger contrast",
        ),
    ],
)
def test_what_differs_is_said(trained, change, words):
    rng = np.random.default_rng(2)
    light, images = measure_light(SETS[trained](rng, 300)), change(SETS[trained](rng, 30))
    assert common_light_difference(images, light) == f"30 of 30 images {words}"
    mixed = np.concatenate([images[:15], SETS[trained](rng, 15)])
    assert common_light_difference(mixed, light) is None
    matched = match_light(mixed, light)
    assert np.array_equal(matched[15:], mixed[15:]) or differs_in_light(mixed[15:], light).any()
    assert not differs_in_light(matched, light).any()


def test_without_ranges_only_the_opposite_polarity_is_noted():
    rng = np.random.default_rng(3)
    images = SETS["digits-like"](rng, 40)
    light = kept(measure_light(images))
    assert common_light_difference(0.2 + 0.5 * images, light) is None
    assert (
        common_light_difference(0.8 - 0.7 * images, light) == "40 of 40 images are dark on light and not light on dark"
    )


def test_matching_keeps_hues():
    rng = np.random.default_rng(4)
    images, light = stained(rng, 12), measure_light(stained(rng, 300))

    def hue(pixels):
        chroma = pixels - pixels.mean(-1, keepdims=True)
        return chroma / np.linalg.norm(chroma, axis=-1, keepdims=True)

    for seen in (0.5 * images, 0.3 + 0.2 * images):  # the same gain and offset for all channels
        matched = match_light(seen, light)
        assert differs_in_light(seen, light).all()
        assert not differs_in_light(matched, light).any()
        inside = (matched > 0) & (matched < 1)
        assert inside.mean() > 0.9
        whole = inside.all(-1)
        assert np.allclose(hue(matched)[whole], hue(seen)[whole], atol=1e-9)
    inverted = match_light(images, Light(0.1, 0.6, 1.0))
    whole = ((inverted > 0) & (inverted < 1)).all(-1)
    assert whole.any()
    assert np.allclose(hue(inverted)[whole], hue(images)[whole], atol=1e-9)
