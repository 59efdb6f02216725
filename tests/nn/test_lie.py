"""Layers on sampled elements of a continuous group: their laws, exact where they must be and in the limit elsewhere."""

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import area_change, haar_samples, parse, translation
from unpose.images import pixel_grid, warp
from unpose.nn import LieBlock, LieConv2d, LieSelfAttention, example_network, lie_cnn

pytestmark = pytest.mark.equivariance

GROUPS = ["translation", "se2", "similarity", "affine", "se2+mirror", "affine+mirror"]


def element_of(name, seed=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return parse(name).random(8, generator=generator, max_shift=20.0, max_stretch=1.8, dtype=dtype)[seed % 8]


def scattered(name, n, generator, dtype=torch.float64):
    """Elements of a group at random positions, two samples each: (2, 2 * n, 3, 3)"""
    points = 5 * torch.randn(2, n, 1, 2, generator=generator, dtype=dtype)
    return (translation(points) @ haar_samples(name, 2, dtype=dtype)).flatten(1, 2)


@pytest.mark.parametrize("name", GROUPS)
def test_attention_does_not_change_if_all_elements_are_moved(name, generator):
    torch.manual_seed(1)
    layer = LieBlock(name, 6, heads=2, unit=3.0)
    tokens = torch.randn(2, 14, 6, generator=generator)
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        layer, elements = layer.to(dtype), scattered(name, 7, generator, dtype)
        wanted = layer(tokens.to(dtype), elements)
        for seed in (1, 2):
            moved = layer(tokens.to(dtype), element_of(name, seed, dtype) @ elements)
            assert (moved - wanted).abs().max() < limit * wanted.abs().max()
    # The control: the same elements moved from the right are others.
    other = layer(tokens.double(), elements @ element_of("affine" if name != "affine" else "similarity"))
    assert (other - wanted).abs().max() > 1e-3


def test_attention_is_continuous_at_half_a_turn_and_where_there_is_no_logarithm():
    torch.manual_seed(2)
    layer = LieSelfAttention("affine", 4, heads=1).double()
    turns = torch.tensor([torch.pi - 1e-9, torch.pi + 1e-9], dtype=torch.float64)
    elements = haar_samples("se2", 1, dtype=torch.float64).repeat(2, 1, 1)
    stretched = parse("affine").exp(torch.tensor([0.0, 0, 0, 0, 0.4, 0], dtype=torch.float64))
    found = []
    for turn in turns:
        elements[1] = parse("so2").exp(turn[None]) @ stretched
        found.append(layer.scores(elements))
    torch.testing.assert_close(*found, atol=1e-7, rtol=0)
    with pytest.raises(ValueError, match="logarithm"):
        parse("affine").log(elements[1])


def test_the_expectation_over_samples_is_equivariant_and_few_samples_are_not(generator):
    # The pooled answer for one cloud and for the same cloud turned, each with its own random samples.
    torch.manual_seed(3)
    layer = LieBlock("se2", 6, heads=2).double()
    for parameter in layer.attention.phi.parameters():
        parameter.data *= 3
    with torch.no_grad():
        points = 2 * torch.randn(1, 5, 1, 2, generator=generator, dtype=torch.float64)
        content = torch.randn(1, 5, 1, 6, generator=generator, dtype=torch.float64)
        turn = parse("se2").exp(torch.tensor([0.0, 0.0, 0.9], dtype=torch.float64))

        def answer(n, pose, offset):
            samples = haar_samples("se2", n, offset=offset, dtype=torch.float64)
            centres = pose @ translation(points)
            centres = translation(centres[..., :2, 2])
            return layer(content.expand(1, 5, n, 6).flatten(1, 2), (centres @ samples).flatten(1, 2)).mean(1)

        errors = {}
        for n in (1, 2, 8, 32):
            offsets = torch.rand(6, 4, generator=generator)
            pairs = [answer(n, turn, offset) - answer(n, torch.eye(3).double(), offset) for offset in offsets]
            errors[n] = float(torch.stack(pairs).abs().mean())
        assert errors[1] > 1e-3
        assert errors[8] < 0.2 * errors[1]
        assert errors[32] < 0.2 * errors[8] or errors[32] < 1e-9


@pytest.mark.parametrize("name", GROUPS)
def test_kernels_depend_on_relative_elements_only(name, generator):
    torch.manual_seed(4)
    moved_by = element_of(name)
    moved_by[:2, 2] = 0
    offsets = 2 * torch.randn(9, 2, generator=generator, dtype=torch.float64)
    layer = LieConv2d(name, 2, 3, radius=3.0).double()
    samples = haar_samples(name, 4, dtype=torch.float64)
    wanted = layer.kernels(samples, offsets)
    found = layer.kernels(moved_by @ samples, offsets @ moved_by[:2, :2].mT)
    # Areas grow by the determinant, and the kernel is an average over its area.
    torch.testing.assert_close(found * area_change(moved_by).abs(), wanted)
    torch.testing.assert_close(layer.mixing(moved_by @ samples), layer.mixing(samples))
    if name != "translation":
        assert (layer.mixing(samples @ element_of("affine+mirror")) - layer.mixing(samples)).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "finite"), [("se2", "c4"), ("se2+mirror", "d4"), ("se2", "c8")])
@pytest.mark.parametrize(
    ("side", "stride"), [(9, 1), (10, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((9, 2), (11, 3)))]
)
def test_convolutions_commute_exactly_with_samples_that_form_a_group(name, finite, side, stride, generator):
    torch.manual_seed(5)
    samples = haar_samples(name, parse(finite).order)
    turns = "d4" if finite == "d4" else "c4"
    for lifting in (True, False):
        layer = LieConv2d(name, 2, 3, radius=2.5, lifting=lifting, stride=stride)
        if finite == "c8":  # quarter turns are every second sample
            maps = torch.rand(2, 2, *([] if lifting else [8]), side, side, generator=generator)
            turned = torch.rot90(maps if lifting else maps.roll(2, 2), 1, (-2, -1))
            wanted = torch.rot90(layer(maps, samples), 1, (-2, -1)).roll(2, 2)
            assert (layer(turned, samples) - wanted).abs().max() < 1e-5 * wanted.abs().max()
            continue
        maps = torch.rand(2, 2, *([] if lifting else [len(samples)]), side, side, generator=generator)
        report = equivariance_error(
            lambda x, layer=layer: layer(x, samples), maps, turns, "regular image",
            input="image" if lifting else "regular image",
        )  # fmt: skip
        assert report.worst_exact < 1e-5
        if turns != "d4":
            assert report.control_error > 1e-2


def test_lifting_agrees_with_the_integral_at_an_affine_map(generator):
    # Smooth images and kernels: the sum over pixels is the integral, so the law holds at positions that are mapped
    # onto each other, here the centre.
    torch.manual_seed(6)
    grid = pixel_grid((41, 41), torch.float64)
    centres = 4 * torch.randn(3, 2, generator=generator, dtype=torch.float64)
    image = torch.exp(-(grid - centres[:, None, None]).square().sum(-1) / 18).sum(0)[None, None]
    pose = parse("affine").exp(torch.tensor([0.0, 0.0, 0.7, 0.1, 0.1, -0.1], dtype=torch.float64))
    layer = LieConv2d("affine", 1, 4, radius=8.0, lifting=True, reach=2.0).double()
    samples = haar_samples("affine", 3, max_scale=1.2, max_stretch=1.2, dtype=torch.float64)
    wanted = layer(image, samples)[..., 20, 20]
    found = layer(warp(image, pose), pose @ samples)[..., 20, 20]
    control = layer(warp(image, pose), samples)[..., 20, 20]
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()
    assert (control - wanted).abs().max() > 3e-2 * wanted.abs().max()


@pytest.mark.parametrize("name", ["lie_cnn", "lie_transformer"])
def test_networks_in_training_take_other_samples_at_every_call(name, generator):
    network, images = example_network(name).train(), torch.rand(2, 2, 10, 15, generator=generator)
    assert not torch.equal(network(images), network(images))


def test_positions_keep_their_digits_under_autocast(generator):
    torch.manual_seed(9)
    attention, far = LieSelfAttention("se2", 4), element_of("se2", dtype=torch.float32)
    far[:2, 2] *= 10
    elements, tokens = scattered("se2", 4, generator, torch.float32), torch.randn(2, 8, 4, generator=generator)
    moved = far @ elements
    convolution, samples = LieConv2d("affine", 2, 3, radius=2.0), haar_samples("affine", 4)
    maps = torch.rand(2, 2, 4, 7, 7, generator=generator)
    exact = convolution(maps, samples)
    with torch.autocast("cpu", torch.bfloat16):
        here, there = attention(tokens, elements), attention(tokens, moved)
        found = convolution(maps, samples)
    # Two hundred pixels away bfloat16 would round positions to whole pixels.
    assert (there - here).abs().max() < 0.02 * here.abs().max()
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.gradients
def test_gradients(generator):
    torch.manual_seed(8)
    convolution = LieConv2d("affine", 1, 2, radius=1.5, lifting=True).double()
    attention = LieSelfAttention("affine", 2, heads=1).double()
    samples = haar_samples("affine", 2, dtype=torch.float64)
    images = torch.rand(1, 1, 3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: convolution(x, samples), images)
    elements = scattered("affine", 1, generator)[0].requires_grad_()
    tokens = torch.randn(1, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, g: attention(x, affine_part(g)), (tokens, elements))


def affine_part(matrices):
    """The same with (0, 0, 1) as the last row, so that finite differences stay in the group."""
    last = torch.tensor([0.0, 0.0, 1.0], dtype=matrices.dtype).expand(len(matrices), 1, 3)
    return torch.cat([matrices[:, :2], last], dim=1)


def test_wrong_arguments():
    samples = haar_samples("se2", 4)
    for call, message in (
        (lambda: lie_cnn("c4", 1, 3, 8), "continuous group"),
        (lambda: lie_cnn("so2", 1, 3, 8), "got so2"),
        (lambda: lie_cnn("se2", 1, 3, 8, radii=(2, 2), strides=(1,)), "a radius and a stride"),
        (lambda: LieConv2d("se2", 1, 3, radius=1.0, stride=4), "half of the stride"),
        (lambda: LieConv2d("se2", 2, 3, radius=2.0)(torch.rand(1, 2, 3, 8, 8), samples), r"\(b, 2, 4, h, w\)"),
        (lambda: LieConv2d("se2", 2, 3, radius=2.0, lifting=True)(torch.rand(1, 1, 8, 8), samples), r"\(b, 2, h, w\)"),
        (lambda: LieSelfAttention("se2", 6, heads=4), "multiple of heads"),
        (lambda: LieSelfAttention("se2", 4, unit=0.0), "positive"),
        (lambda: LieSelfAttention("se2", 4)(torch.rand(1, 3, 4), samples), "every token needs an element"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
