"""The network for dilations: an enlarged image is seen one scale up, and the control, another ratio, is not."""

import math

import pytest
import torch

from unpose.groups import scaling
from unpose.images import pixel_grid, warp
from unpose.nn import ScaleConv2d, count_parameters, rebuild, scale_net
from unpose.train import load_network, save_network, twin_description


def blobs(shape, generator, scale):
    """Three smooth blobs about the centre, enlarged by a scale, drawn and not resampled: (1, 2, h, w)."""
    places = 5 * torch.rand(2, 3, 2, generator=generator, dtype=torch.float64) - 2.5
    grid = pixel_grid(shape, torch.float64) / scale
    gaps = (grid[None, None] - places[:, :, None, None]).square().sum(-1)  # (2, 3, h, w)
    return torch.exp(-gaps / (2 * 2.0**2)).sum(1)[None]


def test_an_enlarged_image_is_seen_one_scale_up(generator):
    torch.manual_seed(0)
    ratio = 1.5
    first = ScaleConv2d(f"dilations(3, {ratio})", 2, 3, 7, lifting=True).double()
    second = ScaleConv2d(f"dilations(3, {ratio})", 3, 4, 7).double()
    shape, seed = (57, 61), generator.get_state()
    small = blobs(shape, generator, 1.0)
    generator.set_state(seed)
    large = blobs(shape, generator, ratio)

    def seen(images):
        return second(torch.tanh(first(images)))

    up = warp(seen(small)[:, :, 0], scaling(torch.tensor(ratio, dtype=torch.float64)))  # the small one, enlarged
    middle = (..., slice(14, -14), slice(14, -14))
    error = (seen(large)[:, :, 1] - up)[middle].norm() / up[middle].norm()
    control = (seen(large)[:, :, 0] - up)[middle].norm() / up[middle].norm()
    assert error < 0.1  # two layers; a sum over pixels is not an integral
    assert control > 4 * error


def test_kernels_equal_the_slow_sum(generator):
    torch.manual_seed(1)
    layer = ScaleConv2d("dilations(2, 2)", 2, 3, 3).double()
    maps = torch.rand(1, 2, 2, 7, 9, generator=generator, dtype=torch.float64)
    found = layer(maps)
    assert found.shape == (1, 3, 2, 7, 9)
    basis = layer.basis1.double()  # seen at scale 2: a window of 5
    assert basis.shape[-1] == 5
    expected = 0.0
    for y in range(5):
        for x in range(5):
            if 0 <= 3 + y - 2 < 7 and 0 <= 4 + x - 2 < 9:
                pixel = maps[0, :, 1, 3 + y - 2, 4 + x - 2]
                expected = expected + torch.einsum("oin,n,i->o", layer.weight, basis[:, y, x], pixel)
    torch.testing.assert_close(found[0, :, 1, 3, 4], expected)


def test_a_twin_has_exactly_as_many_parameters_and_a_file_brings_it_back(tmp_path, generator):
    network = scale_net("dilations(3, 1.4)", 1, 5, (11, 13), widths=(3, 4)).eval()
    twin = rebuild(twin_description(network.description))
    assert twin.group.order == 1
    assert count_parameters(twin) == count_parameters(network)
    images = torch.rand(2, 1, 11, 13, generator=generator)
    again = load_network(save_network(tmp_path / "scales.safetensors", network))
    assert torch.equal(again(images), network(images))
    assert math.isfinite(float(again(images).sum().detach()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale_net("c4", 1, 5, 11), "needs dilations"),
        (lambda: scale_net("d1", 1, 5, 11), "needs dilations"),
        (lambda: scale_net("dilations(2)", 1, 5, 11, widths=()), "at least one layer"),
        (lambda: scale_net("dilations(2)", 1, 5, 11, kernel_size=4), "odd"),
        (lambda: scale_net("se2", 1, 5, 11), "finite group"),
    ],
)
def test_it_says_what_it_needs(make, message):
    with pytest.raises(ValueError, match=message):
        make()
