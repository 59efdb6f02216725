"""Gaussian smoothing equals SciPy's, and is symmetric, on which the gradient of the published method relies."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from unpose.images import smooth


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.3])
def test_equals_scipy(sigma, generator):
    images = torch.rand(2, 3, 17, 23, generator=generator, dtype=torch.float64)
    expected = scipy.ndimage.gaussian_filter(
        images.numpy(), (0, 0, sigma, sigma), mode="constant", radius=(0, 0, *[int(np.ceil(4 * sigma))] * 2)
    )
    np.testing.assert_allclose(smooth(images, sigma).numpy(), expected, atol=1e-12)


def test_is_its_own_adjoint(generator):
    a, b = torch.rand(2, 11, 13, generator=generator, dtype=torch.float64)
    torch.testing.assert_close((smooth(a, 3.0) * b).sum(), (a * smooth(b, 3.0)).sum())


def test_no_smoothing_and_much_smoothing(generator):
    image = torch.rand(5, 7, generator=generator)
    assert torch.equal(smooth(image, 0.0), image)
    assert smooth(image, 100.0).shape == image.shape
    assert smooth(torch.rand(1, 1), 2.0).shape == (1, 1)


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_invalid_sigmas_are_refused(sigma):
    with pytest.raises(ValueError, match="sigma"):
        smooth(torch.zeros(3, 3), sigma)
