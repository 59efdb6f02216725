"""The three drawings are centred, inside a disc, without symmetry, and the same at every size."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from unpose.data.stroke_drawings import DRAWINGS

Drawing = Callable[..., NDArray[np.float32]]

every_drawing = pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS.keys())
every_size = pytest.mark.parametrize("size", [33, 64, 100])


def _distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Squared difference as a share of the squared norm: 0 for equal images, 2 for disjoint ones."""
    return float(((one - other) ** 2).sum() / (one**2).sum())


def _offsets(size: int) -> NDArray[np.float64]:
    return np.mgrid[:size, :size] - (size - 1) / 2


@every_drawing
@every_size
def test_shape_type_and_range(draw: Drawing, size: int) -> None:
    image = draw(size)
    assert image.shape == (size, size, 3)
    assert image.dtype == np.float32
    assert image.min() == 0.0
    assert 0.5 < image.max() <= 1.0


@every_drawing
def test_default_size_is_64_and_drawing_is_deterministic(draw: Drawing) -> None:
    np.testing.assert_array_equal(draw(), draw(64))


@every_drawing
@every_size
def test_everything_outside_the_disc_is_black(draw: Drawing, size: int) -> None:
    image = draw(size)
    outside = np.hypot(*_offsets(size)) > 0.36 * size
    assert (image[outside] ** 2).sum() < 0.01 * (image**2).sum()
    for corner in (image[0, 0], image[0, -1], image[-1, 0], image[-1, -1]):
        assert not corner.any()


@every_drawing
@every_size
def test_brightness_is_centred(draw: Drawing, size: int) -> None:
    light = draw(size).sum(axis=2)
    centroid = (_offsets(size) * light).sum(axis=(1, 2)) / light.sum()
    assert np.abs(centroid).max() < 0.15


@every_drawing
def test_a_shift_by_ten_pixels_keeps_almost_all_light_in_the_frame(draw: Drawing) -> None:
    image = draw(64)
    for kept in (image[10:], image[:-10], image[:, 10:], image[:, :-10]):
        assert kept.sum() > 0.999 * image.sum()


@every_drawing
@every_size
def test_no_symmetry_of_the_square(draw: Drawing, size: int) -> None:
    image = draw(size)
    turned = [np.rot90(image, quarter) for quarter in range(4)]
    others = turned[1:] + [pose[:, ::-1] for pose in turned]
    assert min(_distance(image, other) for other in others) > 0.4


@every_drawing
def test_sizes_show_the_same_picture(draw: Drawing) -> None:
    reduced = draw(128).reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))
    assert _distance(draw(64), reduced) < 0.05


def test_drawings_differ_from_each_other() -> None:
    images = [draw(64) for draw in DRAWINGS.values()]
    for i, one in enumerate(images):
        for other in images[i + 1 :]:
            assert _distance(one, other) > 0.4


def test_only_the_seven_is_grey() -> None:
    grey = {name: bool(np.ptp(draw(64), axis=2).max() == 0) for name, draw in DRAWINGS.items()}
    assert grey == {"crab": False, "seven": True, "creature": False}


@every_drawing
def test_too_small_a_size_is_rejected(draw: Drawing) -> None:
    with pytest.raises(ValueError, match="size must be at least 8"):
        draw(4)
