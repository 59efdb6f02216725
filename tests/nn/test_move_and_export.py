"""Networks keep their predictions when they are moved, loaded, cast, exported, or run without gradients."""

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from unpose.nn import NETWORKS, Network, SpatialPool, create_network
from unpose.nn.layers.norm_and_pooling import _halve

OPTIONS = {
    "gsa_net": {"group": "c4", "config": {"lifted": 6, "stages": ((6,), (8,)), "window": 3, "heads": 2}},
    "group_cnn": {"group": "c8", "width": 3, "stages": (1, 1, 1)},
    "group_resnet": {"group": "d4", "widths": (2, 3), "depths": (1, 1)},
    "swivel_net": {"group": "d1", "widths": (3, 4), "depths": (1,), "heads": 2, "window": 3},
    "scale_net": {"group": "dilations(2, 1.5)", "widths": (3, 4)},
    "patch_net": {"group": "c8", "hidden": 5, "patch_size": 5, "window": 3},
    "equivariant_unet": {"group": "c4", "width": 2, "levels": 2},
    "equivariant_vit": {"group": "d4", "patch": 5, "depth": 2, "width": 32, "heads": 8},
    "lie_cnn": {"group": "affine+mirror", "samples": 4, "width": 3, "radii": (2, 1), "strides": (2, 2)},
    "lie_transformer": {"group": "similarity", "samples": 3, "patch": 5, "depth": 1, "width": 6, "heads": 2},
    "scale_fourier_net": {"group": "dilations(2, 1.5)", "width": 3, "spacings": (1, 2)},
}
SHAPE = (2, 1, 10, 15)
every_network = pytest.mark.parametrize("name", NETWORKS)


def tiny(name: str) -> Network:
    return create_network(name, in_channels=1, n_classes=3, image_size=SHAPE[-2:], **OPTIONS[name]).eval()


def predict(network: Network, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images)


@every_network
def test_constant_tables_are_computed_again_when_weights_are_loaded_into_empty_memory(name, generator):
    network, images = tiny(name), torch.rand(SHAPE, generator=generator)
    wanted = predict(network, images)
    empty = tiny(name).to_empty(device="cpu")
    empty.load_state_dict(network.state_dict())
    assert torch.equal(predict(empty, images), wanted)
    with torch.device("meta"):
        outline = tiny(name)
    outline.load_state_dict(network.state_dict(), assign=True)
    assert torch.equal(predict(outline, images), wanted)
    outline.to_empty(device="meta").to_empty(device="cpu").load_state_dict(network.state_dict())
    assert torch.equal(predict(outline, images), wanted)


@every_network
def test_constant_tables_are_exact_after_a_cast_and_back(name, generator):
    network, images = tiny(name), torch.rand(SHAPE, generator=generator)
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    wanted = predict(network, images)
    cast = network.bfloat16().float()
    cast.load_state_dict(weights)
    assert torch.equal(predict(cast, images), wanted)
    doubled = {key: buffer for key, buffer in network.double().named_buffers() if key not in weights}
    fresh = dict(tiny(name).double().named_buffers())
    assert doubled
    assert all(torch.equal(buffer, fresh[key]) for key, buffer in doubled.items())


@every_network
def test_networks_are_built_and_run_on_the_default_device(name):
    for device in ("meta", "cpu"):
        torch.set_default_device(device)
        try:
            network = tiny(name).train()
            assert {tensor.device.type for tensor in (*network.parameters(), *network.buffers())} == {device}
            assert network(torch.rand(SHAPE)).shape[:2] == (2, 3)
        finally:
            torch.set_default_device(None)
    assert tiny(name).to("meta")(torch.rand(SHAPE, device="meta")).shape[:2] == (2, 3)


@every_network
def test_a_network_built_in_inference_mode_can_be_trained_after_its_weights_are_loaded(name, generator):
    with torch.inference_mode():
        network = tiny(name)
    network.load_state_dict(tiny(name).state_dict(), assign=True)
    network(torch.rand(SHAPE, generator=generator)).sum().backward()


@every_network
def test_predictions_do_not_depend_on_gradients_inference_mode_or_threads(name, generator):
    network, images = tiny(name), torch.rand(SHAPE, generator=generator)
    wanted = network(images).detach()  # records gradients
    assert torch.equal(predict(network, images), wanted)
    with torch.inference_mode():
        assert torch.equal(network(images), wanted)
    found = []
    thread = threading.Thread(target=lambda: found.append(network(images).detach()))
    thread.start()
    thread.join()
    before = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(predict(network, images))
    torch.set_num_threads(before)
    assert all(torch.equal(each, wanted) for each in found)


@every_network
def test_no_parameter_is_empty(name):
    """``DistributedDataParallel`` fails with a parameter of size zero."""
    finite = "dilations" not in OPTIONS[name]["group"] and not name.startswith("lie")
    groups = ("c1", "c2", "d1", "d2", "c4", "d4", "c8") if finite else (OPTIONS[name]["group"],)
    options = OPTIONS[name] | ({"heads": None} if name == "equivariant_vit" else {})
    for group in groups:
        network = create_network(name, in_channels=1, n_classes=3, image_size=SHAPE[-2:], **options | {"group": group})
        assert all(parameter.numel() for parameter in network.parameters()), group


@every_network
def test_arrays_that_are_no_tensors_are_refused_with_what_to_do(name):
    images = np.zeros((2, 10, 15, 1), np.float32)
    for given in (images, images.tolist()):
        with pytest.raises(TypeError, match=r"must be a tensor .* torch\.from_numpy\(images\)\.movedim\(-1, 1\)"):
            tiny(name)(given)
    assert tiny(name)(torch.from_numpy(images).movedim(-1, 1)).shape[:2] == (2, 3)


@pytest.mark.slow
def test_patch_net_can_be_exported_and_its_smoothing_is_not_fixed(generator):
    network, images = tiny("patch_net"), torch.rand(SHAPE, generator=generator)
    program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    more = torch.rand(5, *SHAPE[1:], generator=generator)
    torch.testing.assert_close(program.module()(more), network(more))
    weights = network.state_dict()
    weights["relate.0.attention.log_smoothing"] += 1.0  # a wider kernel with a larger radius
    network.load_state_dict(weights)
    wider = program.module()
    wider.load_state_dict(network.state_dict(), strict=False)
    torch.testing.assert_close(wider(more), network(more))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_patch_net_can_be_traced(generator):
    network, images = tiny("patch_net"), torch.rand(SHAPE, generator=generator)
    traced = torch.jit.trace(network, images)  # compares with a second trace, without gradients
    more = torch.rand(5, *SHAPE[1:], generator=generator)
    torch.testing.assert_close(traced(more), network(more))


@pytest.mark.slow
def test_swivel_net_is_compiled_to_one_graph_and_once_more_for_any_batch(generator):
    from torch._dynamo.testing import CompileCounter  # imports the compiler, which takes seconds

    network, compiled = tiny("swivel_net"), CompileCounter()
    fast = torch.compile(network, backend=compiled, fullgraph=True)
    for batch in (2, 3, 4, 5):
        images = torch.rand(batch, *SHAPE[1:], generator=generator)
        torch.testing.assert_close(fast(images), network(images))
    assert compiled.frame_count <= 2  # the second is for batches of any size, which torch may try first


@pytest.mark.parametrize(
    "name", ["group_cnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("swivel_net", "gsa_net"))]
)
def test_networks_can_be_exported_with_free_height_and_width(name, generator):
    network = tiny(name)
    sides = {axis: torch.export.Dim(f"side{axis}", min=9, max=64) for axis in (2, 3)}
    example = torch.rand(2, 1, 12, 14, generator=generator)
    program = torch.export.export(network, (example,), dynamic_shapes=(sides,)).module()
    for size in ((9, 10), (13, 11), (12, 17)):
        images = torch.rand(2, 1, *size, generator=generator)
        torch.testing.assert_close(program(images), network(images))


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("size", [(1, 2), (5, 7), (8, 3), (6, 4)])
def test_pooling_of_unknown_parity_equals_pooling(kind, size, generator):
    maps = torch.randn(2, 3, 4, *size, generator=generator)
    torch.testing.assert_close(_halve(_halve(maps, -2, kind), -1, kind), SpatialPool(kind)(maps))
