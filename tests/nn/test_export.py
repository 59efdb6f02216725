"""Networks are exported, traced and compiled for images of other numbers and sizes."""

import pytest
import torch

from unpose.nn import SpatialPool, example_network

SIDES = (10, 15)


def images_like(generator, n=2, sides=SIDES):
    return torch.rand(n, 2, *sides, generator=generator)


@pytest.mark.slow
def test_patch_net_can_be_exported_and_its_smoothing_is_not_fixed(generator):
    network, images = example_network("patch_net").eval(), images_like(generator)
    program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    more = images_like(generator, 5)
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
    network, images = example_network("patch_net").eval(), images_like(generator)
    traced = torch.jit.trace(network, images)  # compares with a second trace, without gradients
    more = images_like(generator, 5)
    torch.testing.assert_close(traced(more), network(more))


@pytest.mark.slow
def test_swivel_net_is_compiled_to_one_graph_and_once_more_for_any_batch(generator):
    from torch._dynamo.testing import CompileCounter  # imports the compiler, which takes seconds

    network, compiled = example_network("swivel_net").eval(), CompileCounter()
    fast = torch.compile(network, backend=compiled, fullgraph=True)
    for batch in (2, 3, 4, 5):
        images = images_like(generator, batch)
        torch.testing.assert_close(fast(images), network(images))
    assert compiled.frame_count <= 2  # the second is for batches of any size, which torch may try first


@pytest.mark.parametrize(
    "name", ["group_cnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("swivel_net", "gsa_net"))]
)
def test_networks_can_be_exported_with_free_height_and_width(name, generator):
    network = example_network(name).eval()
    sides = {axis: torch.export.Dim(f"side{axis}", min=9, max=64) for axis in (2, 3)}
    example = images_like(generator, sides=(12, 14))
    program = torch.export.export(network, (example,), dynamic_shapes=(sides,)).module()
    for size in ((9, 10), (13, 11), (12, 17)):
        images = images_like(generator, sides=size)
        torch.testing.assert_close(program(images), network(images))


@pytest.mark.parametrize("kind", ["max", "mean"])
def test_pooling_of_unknown_parity_equals_pooling(kind, generator):
    sides = {axis: torch.export.Dim(f"side{axis}", min=3, max=64) for axis in (3, 4)}
    pool, example = SpatialPool(kind), torch.randn(2, 3, 4, 6, 8, generator=generator)
    program = torch.export.export(pool, (example,), dynamic_shapes=(sides,)).module()
    for size in ((3, 4), (5, 7), (8, 3), (6, 4)):
        maps = torch.randn(2, 3, 4, *size, generator=generator)
        torch.testing.assert_close(program(maps), pool(maps))
