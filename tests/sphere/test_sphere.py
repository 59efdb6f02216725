"""Attention on the sphere: longitude shifts are exact, other rotations converge with the resolution, poles included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.networks import contrasted
from kit.tensors import normal, relative_error, uniform
from unpose.groups import parse
from unpose.sphere import SphereAttention, areas, directions, rotate, sphere_mean, sphere_net

pytestmark = pytest.mark.equivariance


def bumps(h, w, turn=None, dtype=torch.float64, channels=4):
    """Smooth functions on the sphere that can be rotated without interpolation: sums of Gaussian bumps."""
    centres, heights = normal(channels, 5, 3, seed=2, dtype=torch.float64), normal(channels, 5, dtype=torch.float64)
    centres = centres / centres.norm(dim=-1, keepdim=True)
    if turn is not None:
        centres = centres @ turn.mT
    closeness = torch.einsum("hwx,cnx->cnhw", directions(h, w, torch.float64), centres)
    return torch.einsum("cn,cnhw->chw", heights, (6 * (closeness - 1)).exp())[None].to(dtype)


def sphere_attention(dtype=torch.float64):
    torch.manual_seed(0)
    return contrasted(SphereAttention(4, heads=2, radius=0.9)).to(dtype)


def turn(seed):
    return parse("so3").random(1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[0, :3, :3]


@settings(max_examples=4, deadline=None)
@given(shift=st.integers(-20, 20), h=st.integers(6, 9), extra=st.integers(0, 1), double=st.booleans())
def test_longitude_shifts_are_exact(shift, h, extra, double):
    dtype = torch.float64 if double else torch.float32
    layer, maps = sphere_attention(dtype), uniform(2, 4, h, 2 * (h + extra), dtype=dtype)
    error = relative_error(layer(maps.roll(shift, -1)), layer(maps).roll(shift, -1))
    assert error < (1e-12 if double else 1e-5)
    stretched = maps.roll(1, -2)  # rows moved: not a rotation
    assert relative_error(layer(stretched), layer(maps).roll(1, -2)) > 1e-3


def test_rotations_converge_with_the_resolution_also_at_the_poles():
    layer, pose = sphere_attention(), turn(4)
    errors, polar = [], []
    for h in (6, 12, 18):
        with torch.no_grad():
            given_, expected = layer(bumps(h, 2 * h, pose)), layer(bumps(h, 2 * h))
        gap = given_ - rotate(expected, pose)
        weight = areas(h, 2 * h, torch.float64)
        errors.append(float((gap.square() * weight).sum().sqrt() / (given_.square() * weight).sum().sqrt()))
        cap = h // 6
        polar.append(float(gap[..., :cap, :].square().mean().sqrt() / gap.square().mean().sqrt()))
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 1.5
    assert polar[2] < 3


def test_the_answer_of_a_network_converges_to_one_for_all_rotations():
    torch.manual_seed(0)
    net = sphere_net(5, in_channels=4, channels=8, depth=2, radius=0.9).double()
    for parameter in net.parameters():
        parameter.data = parameter.data * 2
    gaps = []
    with torch.no_grad():
        for h in (6, 12):
            upright, turned = (bumps(h, 2 * h, pose) for pose in (None, turn(4)))
            torch.testing.assert_close(net(upright.roll(5, -1)), net(upright), rtol=1e-10, atol=1e-10)
            gaps.append(relative_error(net(turned), net(upright)))
        control = relative_error(net(upright.roll(3, -2)), net(upright))  # rows moved: not a rotation
    assert gaps[1] < gaps[0] / 2
    assert control > 10 * gaps[1]


def test_rotate_follows_the_group():
    maps, one, two = bumps(24, 48), turn(1), turn(2)
    assert relative_error(rotate(maps, one), bumps(24, 48, one)) < 0.02
    assert relative_error(rotate(rotate(maps, one), two), rotate(maps, two @ one)) < 0.03
    pole = torch.zeros(1, 1, 8, 16)
    pole[..., 0, :] = 1
    over = torch.diag(torch.tensor([1.0, -1.0, -1.0]))  # half a turn about x swaps the poles
    assert rotate(pole, over)[0, 0, -1].mean() > 0.9


def test_areas_make_means_invariant():
    h = 24
    plain = (bumps(h, 2 * h, turn(3)) - bumps(h, 2 * h)).mean((2, 3)).norm()
    fair = (sphere_mean(bumps(h, 2 * h, turn(3))) - sphere_mean(bumps(h, 2 * h))).norm()
    assert fair < 0.05 * plain
    assert math.isclose(float(areas(7, 12, torch.float64).sum() * 12), 4 * math.pi, rel_tol=1e-12)


def test_bad_panoramas():
    layer = SphereAttention(4)
    for shape, message in [((1, 4, 8, 8), "does not wrap"), ((1, 4, 8, 15), "even"), ((4, 8, 16), r"\(b, c, h, w\)")]:
        with pytest.raises(ValueError, match=message):
            layer(uniform(*shape))
    with pytest.raises(ValueError, match="reaches no neighbour"):
        SphereAttention(4, radius=0.1)(uniform(1, 4, 8, 16))
    with pytest.raises(ValueError, match="multiple of heads"):
        SphereAttention(5)
