"""Background and contrast: invariance to factor and offset, dark on light, and constant images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpose.images import Light, differs_in_light, match_light, measure_light
from unpose.images.light import ground_and_contrast

LIGHT_ON_DARK = Light(0.0, 0.9, 1.0)


def figures(count=5, shape=(13, 17), seed=3):
    """Bars of several strengths on a ground of zero, none at the border: (count, 13, 17)."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, *shape), np.float32)
    images[:, 3:9, 4:7] = rng.uniform(0.6, 0.9, (count, 6, 3))
    return images


@given(factor=st.floats(0.2, 1.0), sign=st.sampled_from([-1, 1]), offset=st.floats(-2, 2))
def test_matching_removes_factor_offset_and_polarity(factor, sign, offset):
    images = figures()
    seen = (sign * factor * images + offset).astype(np.float32)
    assert np.allclose(match_light(seen, LIGHT_ON_DARK), match_light(images, LIGHT_ON_DARK), atol=2e-5)


@pytest.mark.parametrize("light", [LIGHT_ON_DARK, Light(0.75, -0.5, 1.0)], ids=["light on dark", "dark on light"])
def test_matched_images_have_the_light_asked_for(light):
    matched = match_light(figures(), light)
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
    coloured = np.repeat(images[..., None], 3, axis=-1)
    assert match_light(coloured, LIGHT_ON_DARK).shape == coloured.shape


def test_images_of_both_polarities_share_no_light():
    mixed = np.concatenate([figures(4), 1 - figures(3)])
    assert not measure_light(mixed).is_common
    assert measure_light(figures()).is_common
    assert str(measure_light(1 - figures())).startswith("dark on light (ground 1.00")
