"""Spectral layers commute with quarter turns and mirrors exactly, and work at other resolutions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unpose.audit import equivariance_error
from unpose.nn import GroupFourier2d, group_fourier

pytestmark = pytest.mark.equivariance


@settings(max_examples=2, deadline=None)
@given(name=st.sampled_from(["c4", "d4", "d2"]), side=st.integers(7, 12), double=st.booleans(), lifting=st.booleans())
def test_layers_commute_with_their_group(name, side, double, lifting):
    torch.manual_seed(0)
    dtype = torch.float64 if double else torch.float32
    layer = GroupFourier2d(name, 2, 3, modes=3, lifting=lifting).to(dtype)
    shape = (3, 2, side, side) if lifting else (3, 2, layer.group.order, side, side)
    report = equivariance_error(
        layer, torch.rand(shape, dtype=dtype), name, "regular image", input="image" if lifting else "regular image"
    )
    assert report.worst_exact < (1e-12 if double else 1e-5)
    if name != "d4":
        assert report.control_error > 1e-2


def test_networks_and_other_resolutions():
    torch.manual_seed(1)
    net = group_fourier("p4m", 1, 2, width=4, modes=3).double()
    x = torch.linspace(0, 2 * torch.pi, 129, dtype=torch.float64)[:-1]
    smooth = (x[:, None].cos() + (2 * x).sin() * (x[:, None] + 0.3).sin())[None, None]
    fine, coarse = net(smooth), net(smooth[..., ::4, ::4])
    assert (fine[..., ::4, ::4] - coarse).norm() < 0.02 * coarse.norm()
    report = equivariance_error(net, torch.rand(2, 1, 9, 9, dtype=torch.float64), "p4m", "image")
    assert report.worst_exact < 1e-12
    assert net(smooth[..., :7, :9]).shape == (1, 2, 7, 9)  # not square


def test_bad_calls():
    with pytest.raises(ValueError, match="quarter turns and mirrors"):
        GroupFourier2d("c8", 1, 1, 3)
    layer = GroupFourier2d("c4", 1, 1, 3)
    with pytest.raises(ValueError, match="at least 7 pixels"):
        layer(torch.rand(1, 1, 4, 6, 8))
    with pytest.raises(ValueError, match="maps on c4"):
        layer(torch.rand(1, 1, 8, 8))


def test_tables_are_computed_again_when_memory_was_empty():
    """Also when the layers are built on the meta device."""
    torch.manual_seed(2)
    network, images = group_fourier("d4", 1, 1, width=3, modes=2), torch.rand(2, 1, 7, 8)
    wanted = network(images)
    with torch.device("meta"):
        outline = group_fourier("d4", 1, 1, width=3, modes=2)
    for empty in (group_fourier("d4", 1, 1, width=3, modes=2).to_empty(device="cpu"), outline.to_empty(device="cpu")):
        empty.load_state_dict(network.state_dict())
        assert torch.equal(empty(images), wanted)
