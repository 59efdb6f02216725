"""Layers on clouds commute with rotations, mirrors, shifts and permutations, and do not see the padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.networks import contrasted
from kit.tensors import normal, relative_error, uniform
from unpose.groups import parse, transform
from unpose.points import (
    DeepSet,
    EGNNLayer,
    GAAttention,
    egnn,
    ga_attention,
    invariant_coordinates,
    iterate,
    local_frames,
    pool,
)

pytestmark = pytest.mark.equivariance

CLOUD_LAYERS = {
    "egnn": lambda: EGNNLayer(5, neighbours=4),
    "egnn, all": lambda: EGNNLayer(5),
    "attention, pairs": lambda: GAAttention(5, rank=2),
    "attention, triples": lambda: GAAttention(5, rank=3),
    "iterated": lambda: iterate(EGNNLayer(5, neighbours=4), 4),
}


def clouds(d, dtype, n=11, seed=1):
    """Points (3, n, d), their features (3, n, 5) and a mask that leaves out a few of them."""
    mask = torch.ones(3, n, dtype=torch.bool)
    mask[0, n - 3 :] = mask[1, 2] = False
    return normal(3, n, d, seed=seed, dtype=dtype), normal(3, n, 5, seed=seed + 1, dtype=dtype), mask


def motions(d, dtype, seed):
    group = parse("e3" if d == 3 else "se2+mirror")
    generator = torch.Generator().manual_seed(seed)
    return group.random(3, generator=generator, max_shift=1.0, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("name", CLOUD_LAYERS)
def test_layers_commute_with_motions_and_nothing_else(name, d, dtype):
    layer, tolerance = contrasted(CLOUD_LAYERS[name]()).to(dtype), 2e-5 if dtype == torch.float32 else 1e-12
    points, features, mask = clouds(d, dtype)
    shown = mask[..., None]
    hidden, moved = layer(features, points, mask)
    pose = motions(d, dtype, 5)
    again, moved_again = layer(features, transform(pose, points), mask)
    assert relative_error(again, hidden, shown) < tolerance
    assert relative_error(moved_again, transform(pose, moved), shown) < tolerance
    assert relative_error(moved, points, shown) > 1e-2  # points do move
    stretched, _ = layer(features, points * torch.tensor([1.3] + [1.0] * (d - 1), dtype=dtype), mask)
    assert relative_error(stretched, hidden, shown) > 1e-3  # the control
    order = torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(3))
    permuted, moved_permuted = layer(features[:, order], points[:, order], mask[:, order])
    assert relative_error(permuted, hidden[:, order], shown[:, order]) < tolerance
    assert relative_error(moved_permuted, moved[:, order], shown[:, order]) < tolerance


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(3, 12), d=st.sampled_from([2, 3]), deep=st.booleans())
def test_networks_are_invariant(seed, n, d, deep):
    torch.manual_seed(seed)
    net = contrasted(egnn(3, width=8, neighbours=3) if deep else ga_attention(3, width=8), seed).double()
    points, _, _ = clouds(d, torch.float64, n=n, seed=seed)
    answer = net(points)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    again = net(transform(motions(d, torch.float64, seed), points)[:, order])
    torch.testing.assert_close(again, answer, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("make", [egnn, ga_attention])
def test_voxels_scales_and_copies_of_points(make):
    # On a grid most distances are equal: whichever of them are the nearest must not matter.
    grid = torch.stack(torch.meshgrid(*map(torch.arange, (4, 4, 3)), indexing="ij"), -1).reshape(1, -1, 3).double()
    voxels = grid[:, grid[0].sum(1) != 3]
    net = contrasted(make(3, width=8, neighbours=10)).double()
    answer = net(voxels)
    turned = transform(motions(3, torch.float64, 4)[:1], voxels)
    torch.testing.assert_close(net(turned), answer, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(net(1000 * turned.flip(1) + 5000), answer, rtol=1e-7, atol=1e-7)
    assert net(1e4 * voxels.float().double() - 3e6).isfinite().all()
    assert (net(voxels * torch.tensor([1.3, 1, 1])) - answer).abs().max() > 1e-3  # the control
    twice = net(torch.cat([voxels, voxels], dim=1))
    assert twice.isfinite().all()
    torch.testing.assert_close(net(torch.cat([turned, turned], dim=1)), twice, rtol=1e-7, atol=1e-7)
    metric = contrasted(make(3, width=8, neighbours=10, unit=2.0)).double()
    assert (metric(3 * voxels) - metric(voxels)).abs().max() > 1e-3
    torch.testing.assert_close(metric(turned), metric(voxels), rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="unit"):
        make(2, unit=0.0)


@pytest.mark.parametrize("make", [egnn, ga_attention])
def test_padding_is_not_seen(make):
    net = make(2, in_features=4, width=8).double().eval()
    points, features, _ = clouds(3, torch.float64)
    mask = torch.zeros(3, 11, dtype=torch.bool)
    mask[:, :6] = True
    expected = net(points[:, :6], features=features[:, :6, :4])
    points[:, 6:], features[:, 6:] = torch.nan, torch.nan
    features[:, 6:] = 77.0
    torch.testing.assert_close(net(points, mask, features[..., :4]), expected)


def test_a_plain_network_on_coordinates_is_not_invariant_but_a_set_function():
    net, (points, _, mask) = contrasted(DeepSet(3, 4)), clouds(3, torch.float32)
    answer = net(points, mask)
    turned = net(transform(motions(3, torch.float32, 2), points), mask)
    assert (turned - answer).norm() > 0.05 * answer.norm()
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(net(points[:, order], mask[:, order]), answer)
    for how in ("mean", "sum", "max"):
        torch.testing.assert_close(pool(points, mask, how), pool(points[:, order], mask[:, order], how))
    with pytest.raises(ValueError, match="how must be one of"):
        pool(points, mask, "median")


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("d", [2, 3])
def test_frames_follow_the_cloud(d, mirrors):
    points, _, mask = clouds(d, torch.float64)
    name = {2: "se2", 3: "se3"}[d] + ("+mirror" if mirrors else "")
    pose = parse(name).random(3, generator=torch.Generator().manual_seed(8), max_shift=2.0, dtype=torch.float64)
    found = invariant_coordinates(points, mask, mirrors=mirrors)
    again = invariant_coordinates(transform(pose, points), mask, mirrors=mirrors)
    torch.testing.assert_close(again.points, found.points, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(transform(found.poses, points)[mask], found.points[mask], rtol=1e-8, atol=1e-8)
    assert (found.margin > 1e-6).all()
    frames, relative = local_frames(points, mask=mask, mirrors=mirrors)
    turned, relative_again = local_frames(transform(pose, points), mask=mask, mirrors=mirrors)
    torch.testing.assert_close(relative_again[mask], relative[mask], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(turned[mask], (frames @ pose[:, None, :d, :d].mT)[mask], rtol=1e-7, atol=1e-7)
    mirror = torch.diag(torch.tensor([-1.0] + [1.0] * d, dtype=torch.float64))
    flipped = invariant_coordinates(transform(mirror, points), mask, mirrors=mirrors).points
    assert (torch.allclose(flipped, found.points, atol=1e-6)) == mirrors


def test_the_margin_of_a_symmetric_cloud_is_zero():
    cube = torch.tensor([[[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)]])
    assert invariant_coordinates(cube).margin < 1e-5


def test_bad_clouds_are_refused():
    net, good = egnn(2), uniform(2, 5, 3)
    points = good.clone()
    points[1, 2, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        net(points)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 2] = False
    assert net(points, mask).isfinite().all()
    with pytest.raises(ValueError, match="no points"):
        net(good, torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(b, n, 2\)"):
        net(uniform(2, 5, 4))
    with pytest.raises(ValueError, match="0 features"):
        net(good, features=uniform(2, 5, 1))
    with pytest.raises(ValueError, match="times"):
        iterate(EGNNLayer(2), 0)
    with pytest.raises(ValueError, match="rank"):
        GAAttention(3, rank=4)


def test_one_point_and_coinciding_points_have_gradients():
    for points in (uniform(1, 1, 3), torch.zeros(1, 6, 3), torch.arange(6.0)[None, :, None].expand(1, 6, 3)):
        for net in (egnn(2, width=4), ga_attention(2, width=4), ga_attention(2, width=4, rank=3)):
            points = points.detach().clone().requires_grad_()
            net(points).sum().backward()
            assert points.grad.isfinite().all()
