"""Equivariant vision transformers: layers in the irrep basis commute, whole token fields are exact, networks deploy."""

import gc
import math
import os
import re
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm

from kit.networks import contrasted
from unpose.audit import equivariance_error, smooth_noise
from unpose.groups import fourier_basis, parse
from unpose.images import pixel_grid, warp
from unpose.nn import FrameMLP, IrrepLinear, IrrepNorm, LiftingPatchEmbed, count_parameters, equivariant_vit
from unpose.train import load_network, save_network

GROUPS = ["c1", "c2", "c3", "c4", "c8", "d1", "d2", "d3", "d4", "d8"]


def small(group, side=8, *, until=None, n_classes=3, **options):
    torch.manual_seed(1)
    heads = 2 * parse(group).order
    size = {"patch": 2, "depth": 2, "width": 4 * heads, "heads": heads, "equivariant_until": until}
    return contrasted(equivariant_vit(group, 2, n_classes, side, **(size | options)))


def to_frames(features, basis):
    """From the irrep basis, (..., order * c), to frames, (..., order, c)."""
    return torch.einsum("rg,...rc->...gc", basis.to(features), features.unflatten(-1, (len(basis), -1)))


def from_frames(frames, basis):
    return torch.einsum("rg,...gc->...rc", basis.to(frames), frames).flatten(-2)


def act(features, group, element):
    """Transform features in the irrep basis by an element: it permutes the frames."""
    basis = fourier_basis(group).to(features)
    frames = to_frames(features, basis)
    return from_frames(torch.einsum("ab,...bc->...ac", group.regular_representation[element].to(frames), frames), basis)


@pytest.mark.laws
@pytest.mark.parametrize("name", GROUPS)
def test_layers_commute_with_every_element(name, generator):
    group = parse(name)
    tokens = torch.randn(3, 5, 6 * group.order, generator=generator).double()
    layers = [
        IrrepLinear(group, 6 * group.order, 7 * group.order),
        IrrepNorm(group, 6 * group.order),
        FrameMLP(group, 6 * group.order, 11 * group.order),
    ]
    for layer in layers:
        contrasted(layer.double())
        for element in range(group.order):
            assert torch.allclose(layer(act(tokens, group, element)), act(layer(tokens), group, element), atol=1e-9)
    if group.order > 2:
        turned = torch.randperm(group.order, generator=generator)  # a permutation that is not of the group
        basis = fourier_basis(group)
        moved = from_frames(to_frames(tokens, basis)[..., turned, :], basis)
        mapped = from_frames(to_frames(layers[0](tokens), basis)[..., turned, :], basis)
        is_element = (group.product == turned).all(1).any()
        assert is_element or (layers[0](moved) - mapped).abs().max() > 1e-2


@pytest.mark.laws
@pytest.mark.parametrize("name", GROUPS)
def test_a_linear_layer_is_the_general_one(name):
    # Maps of functions on a group that commute with it are convolutions: as many as the group has elements.
    order = parse(name).order
    layer = IrrepLinear(name, 3 * order, 5 * order, bias=False)
    assert count_parameters(layer) == order * 3 * 5
    assert torch.linalg.matrix_rank(layer(torch.eye(3 * order))) == 3 * order


@pytest.mark.laws
@pytest.mark.parametrize("name", ["c4", "d4"])
def test_a_norm_is_the_layer_norm_over_channels_and_elements(name, generator):
    group = parse(name)
    tokens = torch.randn(4, 5 * group.order, generator=generator).double() + 3
    basis = fourier_basis(group)
    frames = to_frames(tokens, basis).flatten(-2)
    wanted = layer_norm(frames, frames.shape[-1:], eps=1e-6).unflatten(-1, (group.order, -1))
    assert torch.allclose(to_frames(IrrepNorm(group, 5 * group.order).double()(tokens), basis), wanted, atol=1e-9)


@pytest.mark.equivariance
@pytest.mark.parametrize("name", ["d1", pytest.param("d4", marks=pytest.mark.slow)])
def test_a_head_can_be_shared_by_frames_that_a_mirror_exchanges(name, generator):
    order = parse(name).order
    network = small(name, 8, width=4 * order, heads=order // 2)
    images = torch.rand(3, 2, 8, 8, generator=generator)
    report = equivariance_error(network.token_field, images, name, "regular image")
    assert report.holds(1e-5), report
    assert report.control_error > 1e-2
    separate = small(name, 8, width=4 * order, heads=order)
    separate.load_state_dict(network.state_dict())  # other heads have the same weights
    assert not torch.allclose(network(images), separate(images), atol=1e-3)


@pytest.mark.slow
@pytest.mark.equivariance
def test_a_trained_network_is_as_exact_as_a_fresh_one(generator):
    torch.manual_seed(1)
    network = equivariant_vit("d4", 1, 2, 10, patch=2, depth=2, width=32, heads=8)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    images = torch.rand(32, 1, 10, 10, generator=generator)
    labels = (images.var((1, 2, 3)) > images.var((1, 2, 3)).median()).long()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(cross_entropy(network(images), labels))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert all((p - old).abs().max() > 1e-3 for p, old in zip(network.parameters(), before, strict=True))
    for side in (8, 10):  # an even and an odd number of patches
        report = equivariance_error(network.eval().token_field, images[:3, :, :side, :side], "d4", "regular image")
        assert report.holds(1e-5), report
        assert report.control_error > 1e-2


@pytest.mark.laws
@pytest.mark.parametrize(("size", "degree"), [(2, 1), (3, 2), (4, 2), (5, 2)])
def test_patches_of_polynomials_are_embedded_exactly_at_finer_angles(size, degree, generator):
    group = parse("c8")
    embed = contrasted(LiftingPatchEmbed(group, 1, size, 3 * group.order).double())
    coefficients = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    x, y = pixel_grid((size, size), torch.float64).flatten(0, 1).T
    cos, sin = group.elements[1, 0, :2]

    def embedded(x, y, most):  # of a random polynomial at these points
        terms = [coefficients[i, j] * x**i * y**j for i in range(most + 1) for j in range(most + 1 - i)]
        return to_frames(embed(sum(terms).view(1, 1, size, size)), fourier_basis(group))[0, 0]  # (order, channels)

    for most in (degree, degree + 1):
        # The image turned by g has at p the value of the image at the inverse of g.
        turned, plain = embedded(cos * x - sin * y, sin * x + cos * y, most), embedded(x, y, most)
        error = (turned - group.regular_representation[1].double() @ plain).norm() / plain.norm()
        assert (error < 1e-6) == (most == degree), (most, error)  # one degree more is an error that is seen


@pytest.mark.slow
@pytest.mark.equivariance
@pytest.mark.parametrize("name", ["c8", "d8"])
def test_between_tokens_fields_turn_at_finer_angles_too(name):
    # What a network says between its tokens is known from images that are shifted by whole pixels, without
    # interpolating tokens. At the weights of the start: the sharper attention is, the more the grid of tokens matters.
    torch.manual_seed(1)
    group, side, patch = parse(name), 64, 4
    network = equivariant_vit(name, 1, 3, side, patch=patch, depth=2, width=4 * group.order, heads=group.order).eval()
    window = (8 * pixel_grid((side, side)).norm(dim=-1) / side - 3).clamp(0, 1).mul(math.pi).cos() / 2 + 0.5
    images = (smooth_noise(2, 1, (side, side), sigma=6.0) - 0.5) * window
    wide = torch.nn.functional.pad(images, [0, patch, 0, patch])
    with torch.no_grad():
        dense = torch.zeros(2, 4, group.order, side, side)
        for dy in range(patch):
            for dx in range(patch):
                dense[..., dy::patch, dx::patch] = network.token_field(wide[..., dy : dy + side, dx : dx + side])
        turned = warp(dense[..., : 1 - patch, : 1 - patch].flatten(1, 2), group.elements[1].float())
        turned = turned.unflatten(1, (4, group.order))[..., ::patch, ::patch]
        given = network.token_field(warp(images, group.elements[1].float()))
    inside = pixel_grid((side // patch, side // patch)).norm(dim=-1) < side / patch / 2 - 1
    right = turned.index_select(2, group.product[1].argsort())
    error, control = (((given - other) * inside).norm() / (other * inside).norm() for other in (right, turned))
    assert error < 0.05 < 0.1 < control, (error, control)


@pytest.mark.equivariance
@pytest.mark.parametrize("dense", [pytest.param(False, marks=pytest.mark.slow), True])
def test_typed_answers_transform_as_they_say(dense, generator):
    images = torch.rand(3, 2, 10, 10, generator=generator)
    scalar = small("d4", 10, dense=dense)
    assert equivariance_error(scalar, images, "d4", "image" if dense else "invariant").holds(1e-5)
    regular = small("d4", 10, output="regular", dense=dense)
    assert equivariance_error(regular, images, "d4", "regular image" if dense else "regular").holds(1e-5)
    vector = small("d4", 10, output="vector", dense=dense)
    with torch.no_grad():
        given, size = vector(images), vector(images).abs().max().item()
    assert given.shape == ((3, 3, 2, 5, 5) if dense else (3, 3, 2))
    for element, moved in ((1, torch.rot90(images, 1, (-2, -1))), (4, images.flip(-1))):
        matrix = parse("d4").elements[element, :2, :2].float()
        wanted = torch.einsum("ij,bvj...->bvi...", matrix, given)
        if dense:
            wanted = torch.rot90(wanted, 1, (-2, -1)) if element == 1 else wanted.flip(-1)
        assert torch.allclose(vector(moved), wanted, atol=1e-5 * size)
        assert not torch.allclose(vector(moved), given, atol=1e-2 * size)


@pytest.mark.equivariance
def test_plain_blocks_after_layer_k_break_the_symmetry_and_c1_has_none(generator):
    images = torch.rand(3, 2, 8, 8, generator=generator)
    hybrid = small("d4", until=1)
    assert not equivariance_error(hybrid, images, "d4").holds(1e-3)
    assert [block.attn.group.name for block in hybrid.blocks] == ["d4", "c1"]
    plain = small("d4", until=0)
    assert plain.group.name == "c1"
    assert isinstance(plain.head, nn.Linear)
    assert count_parameters(hybrid) < count_parameters(plain)


def test_shapes_without_a_head_and_by_description(generator):
    network = small("c4", n_classes=0)
    assert network(torch.rand(2, 2, 8, 12, generator=generator)).shape == (2, 24, 32)
    assert network.description["equivariant_until"] == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
def test_checkpointing_and_autocast(generator):
    network, images = small("d4").train(), torch.rand(2, 2, 8, 8, generator=generator)
    network(images).square().sum().backward()
    wanted = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    network.set_grad_checkpointing()
    network(images).square().sum().backward()
    assert all(torch.equal(p.grad, want) for p, want in zip(network.parameters(), wanted, strict=True))
    with torch.no_grad():
        exact = network(images)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = network(images)
    assert rounded.dtype == torch.bfloat16
    assert torch.allclose(rounded.float(), exact, atol=0.1 * exact.abs().max().item())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 30}, "multiple of 8"),
        ({"heads": 2}, "heads must be a multiple of 8, the order of d4, or half of it"),
        ({"patch": 3}, "do not fill"),
        ({"equivariant_until": 3}, "between 0 and the depth"),
        ({"output": "tensor"}, "scalar, regular, vector"),
        ({"output": "vector", "equivariant_until": 1}, "to the end"),
    ],
)
def test_wrong_arguments_are_explained(options, words):
    given = {"patch": 2, "depth": 2, "width": 32, "heads": 8} | options
    with pytest.raises(ValueError, match=words):
        equivariant_vit("d4", 1, 3, 8, **given)


@pytest.mark.parametrize(
    ("group", "width", "heads"),
    [("d4", 384, 4), ("d4", 768, 8), ("d4", 1024, 8), ("d4", 64, 4), ("c1", 384, 6), ("c1", 768, 12), ("c4", 384, 4),
     ("d1", 384, 4), ("d1", 24, 1), ("c8", 96, 8), ("c1", 200, 2)],
)  # fmt: skip
def test_default_heads_are_those_that_are_fast(group, width, heads):
    with torch.device("meta"):
        network = equivariant_vit(group, 3, 10, 32, depth=1, width=width)
    assert network.description["heads"] == heads


def test_matrices_of_elements_are_not_kept_for_every_size():
    """They take up to half a gigabyte for each size of a patch."""
    for size in (6, 7, 9, 10, 11):
        LiftingPatchEmbed("d4", 1, size, 8)
    gc.collect()
    sizes = {8 * size**4 for size in (6, 7, 9, 10, 11)}
    kept = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.numel() in sizes]
    assert len(kept) <= 2


@pytest.mark.parametrize("group", ["c1", "c2", "d1", "d2"])
def test_weights_of_earlier_versions_with_empty_tensors_are_loaded(group, tmp_path):
    network = small(group)
    weights = dict(network.state_dict())
    for name, module in network.named_modules():
        if isinstance(module, IrrepLinear):
            weights[f"{name}.pairs"] = torch.empty(0, 2, 3, 3)
        elif isinstance(module, IrrepNorm):
            weights[f"{name}.weight_pairs"] = torch.empty(0, 1, 3)
    assert len(weights) > len(network.state_dict())
    images = torch.rand(2, 2, 8, 8)
    again = small(group)
    again.load_state_dict(weights)
    assert torch.equal(again(images), network(images))
    saved = save_network(tmp_path / "old.safetensors", network)
    with safetensors.safe_open(saved, "pt") as file:
        safetensors.torch.save_file(weights, saved, metadata=file.metadata())
    assert torch.equal(load_network(saved)(images), network(images))


SHARDED = """
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from unpose.nn import equivariant_vit

def largest_axis(parameter):
    return Shard(max(range(parameter.ndim), key=lambda axis: parameter.shape[axis]))

torch.manual_seed(1)
network = equivariant_vit("d4", 2, 3, 8, patch=2, depth=2, width=64, heads=16)
images = torch.rand(4, 2, 8, 8)
network(images).square().mean().backward()
wanted, whole = network(images).detach(), [parameter.grad for parameter in network.parameters()]
network.zero_grad()

distributed.init_process_group("gloo")
rank, mesh = distributed.get_rank(), distributed.init_device_mesh("cpu", (2,))
for block in network.blocks:
    fully_shard(block, mesh=mesh, shard_placement_fn=largest_axis)
fully_shard(network, mesh=mesh)
shares = [parameter.to_local().numel() / parameter.numel() for parameter in network.blocks.parameters()]
assert max(shares) == 0.5, shares
half = slice(2 * rank, 2 * rank + 2)
given = network(images[half])
torch.testing.assert_close(given, wanted[half])
given.square().mean().backward()
for parameter, gradient in zip(network.parameters(), whole, strict=True):
    torch.testing.assert_close(parameter.grad.full_tensor(), gradient, rtol=1e-4, atol=1e-6)
print("process", rank, "agrees")
distributed.destroy_process_group()
"""


@pytest.mark.slow  # three more processes import torch
def test_two_processes_share_blocks(tmp_path):
    (tmp_path / "program.py").write_text(SHARDED)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall("process [01] agrees", done.stdout)) == ["process 0 agrees", "process 1 agrees"]
