"""Images that users pass: which layouts and types are accepted, and what is refused."""

import numpy as np
import pytest
import torch

from unpose.images import as_batch, from_batch


def test_layouts(rng):
    grey, colour = rng.random((5, 7, 9)), rng.random((5, 7, 9, 3)).astype(np.float32)
    assert as_batch(grey).shape == (5, 1, 7, 9)
    assert as_batch(colour).shape == (5, 3, 7, 9)
    np.testing.assert_array_equal(from_batch(as_batch(grey), channels=False), grey)
    np.testing.assert_array_equal(from_batch(as_batch(colour), channels=True), colour)
    assert as_batch([colour[0], colour[1]]).shape == (2, 3, 7, 9)
    assert as_batch(torch.from_numpy(grey)).dtype == torch.float64


@pytest.mark.parametrize(
    ("dtype", "full"), [(np.uint8, 255), (np.uint16, 65535), (bool, 1)], ids=["uint8", "uint16", "bool"]
)
def test_integers_are_divided_by_their_full_scale(dtype, full):
    batch = as_batch(np.full((1, 2, 2), full, dtype))
    assert batch.dtype == torch.float32
    assert (batch == 1).all()


def test_precision_is_kept():
    assert as_batch(np.zeros((1, 2, 2), np.float64)).dtype == torch.float64
    assert as_batch(np.zeros((1, 2, 2), np.float16)).dtype == torch.float32
    assert as_batch(np.zeros((1, 2, 2), ">f4")).dtype == torch.float32
    assert as_batch(np.zeros((1, 2, 2), np.float64), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((4, 4)), r"one image is images\[None\]"),
        (np.zeros((0, 4, 4)), "no images"),
        (np.zeros((3, 0, 4)), "no pixels"),
        (np.zeros((3, 4, 4), np.int64), "full scale"),
        ([np.zeros((4, 4)), np.zeros((4, 5))], "image 1 is"),
        (np.zeros((2, 4, 4), complex), "complex"),
        (np.array([["a", "b"]]), "numbers"),
        (np.zeros((1, 2, 3, 4, 5)), "shape"),
    ],
)
def test_invalid_images_are_refused_with_a_reason(images, message):
    with pytest.raises(ValueError, match=message):
        as_batch(images)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_on_the_wrong_axis_are_refused_unless_declared(rng, channels):
    images = rng.random((5, channels, 7, 9))
    for given in (images, torch.from_numpy(images)):
        with pytest.raises(ValueError, match=r"transpose\(0, 2, 3, 1\)"):
            as_batch(given)
        np.testing.assert_array_equal(as_batch(given, channels_first=True), images)
    np.testing.assert_array_equal(as_batch(images.transpose(0, 2, 3, 1)), images)


def test_the_last_axis_wins_where_both_could_be_channels(rng):
    for shape in ((5, 3, 7, 3), (5, 1, 7, 1), (5, 4, 9, 2)):
        images = rng.random(shape)
        np.testing.assert_array_equal(as_batch(images), np.moveaxis(images, -1, 1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_names_the_image_that_is_not_finite(bad):
    images = np.zeros((5, 3, 3))
    images[3, 1, 1] = bad
    with pytest.raises(ValueError, match=r"image 3 .*NaN or infinite"):
        as_batch(images)


def test_read_only_arrays_are_copied():
    # torch warns of tensors over such arrays, and only once in a process: memory tells.
    images = np.random.default_rng(1).random((2, 5, 7), np.float32)
    assert np.shares_memory(as_batch(images).numpy(), images)
    images.flags.writeable = False
    batch = as_batch(images).numpy()
    assert not np.shares_memory(batch, images)
    assert np.array_equal(batch[:, 0], images)


def test_lists_of_tensors_and_wider_floats_are_accepted(rng):
    images = rng.random((2, 3, 4))
    tracked = [torch.tensor(image, requires_grad=True) for image in images]
    assert torch.equal(as_batch(tracked), as_batch(images))
    assert torch.equal(as_batch(images.astype(np.longdouble)), as_batch(images))
