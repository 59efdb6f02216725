"""Statistics of texture and shape: unchanged under quarter turns, mirrors and backgrounds."""

import pytest
import torch

from unpose.images import statistics


@pytest.mark.equivariance
@pytest.mark.parametrize("shape", [(3, 1, 13, 13), (3, 1, 12, 17), (2, 3, 11, 10), (2, 1, 53, 53), (2, 1, 8, 8)])
def test_quarter_turns_and_mirrors_do_not_change_the_statistics(shape):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(shape, generator=generator)
    found = statistics.image_statistics(images)
    assert found.shape == (shape[0], statistics.count_statistics(shape[1]))
    assert torch.isfinite(found).all()
    control = (statistics.image_statistics(torch.rand(shape, generator=generator)) - found).abs().max()
    for turned in (torch.rot90(images, 1, (2, 3)), torch.rot90(images, 2, (2, 3)), images.flip(3), images.mT):
        assert (statistics.image_statistics(turned) - found).abs().max() < 1e-5 < 1e-2 < control


def test_the_background_does_not_count_and_constant_images_are_finite():
    images = torch.zeros(2, 1, 15, 15)
    images[:, :, 4:9, 5:11] = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        statistics.image_statistics(images + 0.4), statistics.image_statistics(images), atol=1e-5, rtol=1e-5
    )
    assert torch.isfinite(statistics.image_statistics(torch.full((1, 1, 9, 9), 0.3))).all()


@pytest.mark.parametrize("count", [5, 40])
def test_the_number_of_threads_changes_no_bit(count):
    images = torch.rand(count, 1, 32, 32, generator=torch.Generator().manual_seed(count))
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(statistics.image_statistics(images))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
