"""Figure and ground: what a factor and an offset cannot change, dark on light, and images that show nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpose.images.light import Light, ground_and_contrast, light_of, match_light, unlike

LIGHT_ON_DARK = Light(0.0, 0.9, 1.0)


def figures(count=5, shape=(13, 17), seed=3):
    """Bars of several strengths on an even ground of zero, none at the border: (count, 13, 17)."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, *shape), np.float32)
    images[:, 3:9, 4:7] = rng.uniform(0.6, 0.9, (count, 6, 3))
    return images


@given(factor=st.floats(0.2, 1.0), sign=st.sampled_from([-1, 1]), offset=st.floats(-2, 2))
def test_what_was_matched_forgets_factor_offset_and_polarity(factor, sign, offset):
    images = figures()
    seen = (sign * factor * images + offset).astype(np.float32)
    assert np.allclose(match_light(seen, LIGHT_ON_DARK), match_light(images, LIGHT_ON_DARK), atol=2e-5)


@pytest.mark.parametrize("like", [LIGHT_ON_DARK, Light(0.75, -0.5, 1.0)], ids=["light on dark", "dark on light"])
def test_matched_images_have_the_light_they_were_brought_to(like):
    matched = match_light(figures(), like)
    found = light_of(matched)
    assert (found.ground, found.contrast, found.agreement) == pytest.approx((like.ground, like.contrast, 1), abs=5e-3)
    assert not unlike(matched, like).any()
    low, high = sorted((like.ground, like.ground + like.contrast))
    assert matched.min() >= low - 1e-6
    assert matched.max() <= high + 1e-6


def test_what_looks_unlike_is_told_image_by_image():
    images = np.concatenate([figures(2), 0.8 - 0.5 * figures(1), 0.1 * figures(1), 0.4 + 0.6 * figures(1)])
    assert unlike(images, LIGHT_ON_DARK).tolist() == [False, False, True, True, True]


def test_an_image_that_shows_nothing_becomes_ground():
    flat = np.full((2, 7, 11), 0.3, np.float32)
    assert np.array_equal(match_light(flat, Light(0.25, 0.5, 1.0)), np.full((2, 7, 11), np.float32(0.25)))
    assert unlike(flat, LIGHT_ON_DARK).all()


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


def test_pictures_of_either_polarity_have_no_light_in_common():
    mixed = np.concatenate([figures(4), 1 - figures(3)])
    assert not light_of(mixed).is_common
    assert light_of(figures()).is_common
    assert str(light_of(1 - figures())).startswith("dark on light (ground 1.00")
