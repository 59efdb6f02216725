"""Features of the shrunk image are the shrunk features, to rounding, at every size."""

import pytest
import torch
from torch.nn.functional import conv2d, gelu, pad

from kit.networks import contrasted
from unpose.images import fourier_resize, from_real_spectrum, quarter_turn, real_spectrum
from unpose.nn import ScaleFourier2d, scale_activation, scale_fourier_net

pytestmark = pytest.mark.equivariance


def law_error(function, images, size):
    """The difference of features of the shrunk image and shrunk features, over the spread of the features."""
    with torch.no_grad():
        wanted = fourier_resize(function(images), (size, size))
        found = function(fourier_resize(images, (size, size)))
    return float((found - wanted).abs().max() / wanted.std())


@pytest.mark.parametrize("side", [16, 17])
@pytest.mark.parametrize("size", [15, 14, 7, 2])
def test_networks_commute_with_shrinking(side, size, generator):
    network = contrasted(scale_fourier_net("dilations(2, 1.5)", 2, 5, side, width=3, spacings=(1, 3)))
    images = torch.rand(2, 2, side, side, generator=generator)
    assert law_error(network.features, images, size) < 1e-5
    assert law_error(network.double().features, images.double(), size) < 1e-12


def test_an_ordinary_activation_does_not_commute(generator):
    maps = torch.randn(2, 3, 17, 17, generator=generator)
    assert law_error(scale_activation, maps, 9) < 1e-5
    assert law_error(gelu, maps, 9) > 0.05


def test_the_activation_is_the_function_where_nothing_is_lost(generator):
    # A linear function of pixels moves no frequency, so all levels agree.
    maps = torch.randn(2, 3, 9, 9, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(scale_activation(maps, lambda x: 2 * x + 1), 2 * maps + 1)


@pytest.mark.parametrize("spacing", [1, 2])
def test_the_convolution_is_an_ordinary_one_at_its_own_size(spacing, generator):
    layer = ScaleFourier2d(2, 3, 5, 15, spacing=spacing).double()
    images = torch.rand(2, 2, 15, 15, generator=generator, dtype=torch.float64)
    ring = 2 * spacing
    padded = pad(images, (ring, ring, ring, ring), mode="circular")
    torch.testing.assert_close(layer(images), conv2d(padded, layer.weight, layer.bias, dilation=spacing))


def test_spectra_agree_with_the_fast_fourier_transform_and_quarter_turns(generator):
    images = torch.rand(2, 9, 15, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(from_real_spectrum(real_spectrum(images), (9, 15)), images)
    energy = torch.fft.fft2(images, norm="ortho").abs().square().sum((-2, -1)) / (9 * 15)
    torch.testing.assert_close(real_spectrum(images).square().sum((-4, -3, -2, -1)), energy)
    square = torch.rand(2, 11, 11, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        fourier_resize(quarter_turn(square[None]), (6, 6)), quarter_turn(fourier_resize(square, (6, 6))[None])
    )
    # A wave of two periods stays the same wave: 20 pixels seen at every fourth are 5 pixels.
    wave = torch.cos(4 * torch.pi * ((torch.arange(20) + 0.5) / 20 - 0.5)).expand(20, 20)
    small = torch.cos(4 * torch.pi * ((torch.arange(5) + 0.5) / 5 - 0.5)).expand(5, 5)
    torch.testing.assert_close(fourier_resize(wave, (5, 5)), small, atol=1e-5, rtol=0)


def test_training_reads_features_at_all_sizes(generator):
    torch.manual_seed(0)
    network = scale_fourier_net("dilations(3, 2)", 1, 4, 12, width=3, spacings=(1,))
    images = torch.rand(1, 1, 12, 12, generator=generator).expand(40, 1, 12, 12)
    found = network(images).detach()
    assert len(torch.unique((found[:, 0] * 1e4).round())) == 3
    network.eval()
    assert len(torch.unique((network(images)[:, 0] * 1e4).round())) == 1


@pytest.mark.gradients
def test_gradients(generator):
    layer = ScaleFourier2d(1, 2, 3, 7).double()
    images = torch.rand(1, 1, 5, 5, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: scale_activation(layer(x)), images)


def test_wrong_arguments():
    for call, message in (
        (lambda: scale_fourier_net("c4", 1, 3, 8), "dilations"),
        (lambda: scale_fourier_net("dilations(2)", 1, 3, 8, spacings=()), "at least one layer"),
        (lambda: ScaleFourier2d(1, 1, 4, 8), "odd"),
        (lambda: ScaleFourier2d(1, 1, 3, 0), "size must be at least 1"),
        (lambda: fourier_resize(torch.rand(4, 4), (0, 3)), "at least one pixel"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
