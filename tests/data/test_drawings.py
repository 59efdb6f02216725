"""The three drawings are centred, inside a disc, without symmetry, different, and the same at every size."""

import numpy as np
import pytest

from unpose.data import drawings


def difference(one, other):
    """The squared difference as a share of the squared norm: 0 for equal images, 2 for disjoint ones."""
    return float(((one - other) ** 2).sum() / (one**2).sum())


@pytest.mark.parametrize("size", [33, 64, 100])
def test_drawings_are_in_the_middle_and_have_a_pose(size):
    images, offsets = drawings(size), np.mgrid[:size, :size] - (size - 1) / 2
    assert (images.shape, images.dtype) == ((3, size, size, 3), np.float32)
    assert images.min() == 0
    assert all(0.5 < image.max() <= 1 for image in images)
    assert [bool(np.ptp(image, axis=2).max() == 0) for image in images] == [False, True, False]  # the seven is grey
    outside = np.hypot(*offsets) > 0.36 * size
    for number, image in enumerate(images):
        assert (image[outside] ** 2).sum() < 0.01 * (image**2).sum()
        light = image.sum(axis=2)
        sixth = size // 6
        for kept in (light[sixth:], light[:-sixth], light[:, sixth:], light[:, :-sixth]):
            assert kept.sum() > 0.999 * light.sum()
        assert np.abs((offsets * light).sum(axis=(1, 2)) / light.sum()).max() < 0.15
        poses = [np.rot90(image, quarter) for quarter in range(4)]
        others = [*poses[1:], *(pose[:, ::-1] for pose in poses), *np.delete(images, number, axis=0)]
        assert min(difference(image, other) for other in others) > 0.4


def test_sizes_show_the_same_pictures():
    np.testing.assert_array_equal(drawings(), drawings(64))
    for small, large in zip(drawings(64), drawings(128), strict=True):
        assert difference(small, large.reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))) < 0.05
    with pytest.raises(ValueError, match="size must be at least 8"):
        drawings(4)
