"""Equivariant vision transformers: layers in the irrep basis commute, whole token fields are exact, networks deploy."""

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm

from unpose.audit import equivariance_error, smooth_noise
from unpose.groups import fourier_basis, parse
from unpose.nn import FrameMLP, IrrepLinear, IrrepNorm, count_parameters, equivariant_vit
from unpose.nn.ops.frames import from_frames, to_frames

GROUPS = ["c1", "c2", "c3", "c4", "c8", "d1", "d2", "d3", "d4", "d8"]


def contrasted(module, scale=2.0):
    """Enlarge the weights and draw all constants, so that attention is not uniform and no bias is zero."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.copy_(parameter + 0.5 * noise if parameter.ndim == 1 else scale * parameter)
    return module.eval()


def small(group, side=8, *, until=None, n_classes=3, **options):
    torch.manual_seed(1)
    heads = 2 * parse(group).order
    size = {"patch": 2, "depth": 2, "width": 4 * heads, "heads": heads, "equivariant_until": until}
    return contrasted(equivariant_vit(group, 2, n_classes, side, **(size | options)))


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
@pytest.mark.parametrize("side", [8, 10])
@pytest.mark.parametrize("name", ["c4", "d1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("d2", "d4"))])
def test_whole_token_fields_are_exact_at_even_and_odd_numbers_of_patches(name, side, generator):
    images = torch.rand(3, 2, side, side, generator=generator)
    network = small(name, side)
    report = equivariance_error(network.token_field, images, name, "regular image")
    assert report.holds(1e-5), report
    assert report.control_error > 1e-2
    assert equivariance_error(network, images, name).holds(1e-5)


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
def test_other_sizes_than_the_one_given_and_odd_patches_are_exact(generator):
    network = small("d4", 9, patch=3)
    report = equivariance_error(
        network.token_field, torch.rand(3, 2, 12, 15, generator=generator), "d4", "regular image"
    )
    assert report.holds(1e-5), report


@pytest.mark.slow
@pytest.mark.equivariance
@pytest.mark.parametrize("name", ["c8", "d8"])
def test_finer_angles_are_near_the_interpolation_floor(name):
    # At the weights of the start. The sharper attention is, the more a turned grid of tokens differs from the grid.
    torch.manual_seed(1)
    network = equivariant_vit(name, 2, 3, 48, patch=4, depth=2, width=8 * parse(name).order, heads=parse(name).order)
    images = smooth_noise(3, 2, (48, 48), sigma=4.0)
    report = equivariance_error(network.eval().token_field, images, name, "regular image")
    assert report.worst_exact < 1e-5
    assert (report.errors <= 1.3 * report.floors + 1e-5).all(), report.table()


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
        ({"n_classes": -1}, "at least 0"),
    ],
)
def test_wrong_arguments_are_explained(options, words):
    given = {"n_classes": 3, "patch": 2, "depth": 2, "width": 32, "heads": 8} | options
    with pytest.raises(ValueError, match=words):
        equivariant_vit("d4", 1, image_size=8, **given)


@pytest.mark.slow
def test_one_graph_is_compiled(generator):
    network, images = small("d4"), torch.rand(2, 2, 8, 8, generator=generator)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")  # the default backend takes minutes on a CPU
    assert torch.allclose(compiled(images), network(images), atol=1e-5)
    compiled(images).sum().backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_agrees_with_torch(generator, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network, images = small("d4"), torch.rand(2, 2, 8, 8, generator=generator)
    torch.onnx.export(network, (images,), tmp_path / "vit.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "vit.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert torch.allclose(torch.from_numpy(found), network(images), atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # the answer is a view, which nobody changes in place
def test_blocks_are_sharded_by_fsdp2(generator, tmp_path):
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    network, images = small("d4"), torch.rand(2, 2, 8, 8, generator=generator)
    wanted = network(images)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        for block in network.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)
        given = network(images)
        assert torch.allclose(given, wanted, atol=1e-5)
        given.sum().backward()
        assert all(parameter.grad is not None for parameter in network.parameters())
    finally:
        distributed.destroy_process_group()
