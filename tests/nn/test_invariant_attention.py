"""Invariant Attention in a network: weights do not depend on pose, gradients flow through the pose, known limits."""

import math

import pytest
import torch

from unpose.groups import parse, rotation
from unpose.images import mirror, quarter_turn, smooth, warp
from unpose.nn import InvariantAttentionBlock, OrbitEmbedding, count_parameters, orbit_attention, patch_net, rebuild
from unpose.nn.functional.orbit_attention import orbit_mask, shift_poses, window_candidates
from unpose.train import baseline_description

SIZE = 11


def part(generator, size=SIZE, channels=1):
    """A smooth shape without symmetry inside the disc of a patch: (channels, size, size)."""
    noise = smooth(torch.randn(channels, size, size, generator=generator, dtype=torch.float64), 1.3)
    return 4 * noise * smooth(orbit_mask(parse("c8"), size), 0.7)


def parts(generator, n, size=SIZE, channels=1):
    return torch.stack([part(generator, size, channels) for _ in range(n)])[None]  # (1, n, c, p, p)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def matrix(attended, n):
    """Weights of the first head as a matrix: row j, column i is the weight of patch i in the mean of patch j."""
    found = torch.zeros(n, n, dtype=attended.weights.dtype)
    return found.scatter_add(1, attended.neighbours[0], attended.weights[0, :, :, 0])


def slow_attention(patches, group, bandwidth, sigma):
    """The same sums as plain loops: every pair and every element resampled separately, without refinement."""
    means, table = torch.zeros_like(patches[0]), torch.zeros(len(patches[0]), len(patches[0]), dtype=patches.dtype)
    for j, fixed in enumerate(patches[0]):
        aligned, squared = [], []
        for i, moving in enumerate(patches[0]):
            turned = [warp(moving[None], element)[0] for element in (group.elements if i != j else group.elements[:1])]
            errors = [smooth(each - fixed, sigma).square().mean() for each in turned]
            best = min(range(len(turned)), key=lambda at, errors=errors: errors[at])
            aligned.append(turned[best])
            squared.append(errors[best])
        table[j] = (-torch.stack(squared) / (2 * bandwidth**2)).softmax(0)
        means[j] = (table[j][:, None, None, None] * torch.stack(aligned)).sum(0)
    return means, table


@pytest.mark.parametrize("name", ["c1", "c2", "d1"])
def test_equals_plain_loops(name, generator):
    # With at most two rotations poses are not refined, so the result is the plain search.
    group, patches = parse(name), parts(generator, 5, size=7, channels=2)
    attended = orbit_attention(patches, group, numbers(0.3), numbers(0.6)[0])
    means, table = slow_attention(patches, group, 0.3, 0.6)
    torch.testing.assert_close(matrix(attended, 5), table)
    torch.testing.assert_close(attended.means[0, :, 0], means)


@pytest.mark.parametrize("name", ["c12", "d8"])
def test_refined_poses_are_within_half_a_step_of_the_plain_search(name, generator):
    group, patches = parse(name), parts(generator, 5)
    attended = orbit_attention(patches, group, numbers(0.3), numbers(0.6)[0])
    moving = torch.zeros(5, 5, 3, 3, dtype=torch.float64)
    moving[torch.arange(5)[:, None], attended.neighbours[0]] = attended.poses[0]
    for j in range(5):
        for i in range(5):
            turned = [warp(patches[0, i], element) for element in group.elements]
            errors = torch.stack([smooth(each - patches[0, j], 0.6).square().sum() for each in turned])
            step = moving[j, i] @ group.elements[errors.argmin() if i != j else 0].inverse()
            assert abs(math.atan2(step[0, 1], step[0, 0])) <= math.pi / (12 if name == "c12" else 8) + 1e-9


def test_a_turned_patch_gets_the_same_weight(generator):
    group, patches = parse("c12"), parts(generator, 4)
    # Two copies of patch 1, at angles between the elements of the group.
    copies = warp(patches[0, 1:2].expand(2, -1, -1, -1), rotation(numbers(0.7, 2.6)))
    patches = torch.cat([patches, copies[None]], dim=1)
    bandwidth, sigma = numbers(0.15), numbers(0.8)[0]
    before = orbit_attention(patches, group, bandwidth, sigma)
    weights = matrix(before, 6)
    assert weights[1, 4] > 3 * weights[1, 0]  # copies have large weights
    floor = 0.0
    for element in range(1, 12):
        for chosen in (1, 3):
            turned = patches.clone()
            pose = group.elements[element]
            turned[0, chosen] = warp(patches[0, chosen], pose)
            after = orbit_attention(turned, group, bandwidth, sigma)
            change = (matrix(after, 6) - weights).abs().max()
            if element % 3 == 0:
                assert change < 1e-12  # quarter turns permute pixels
                others = [j for j in range(6) if j != chosen]
                torch.testing.assert_close(after.means[0, others], before.means[0, others])
                torch.testing.assert_close(
                    after.means[0, chosen, 0], quarter_turn(before.means[0, chosen, 0], element // 3)
                )
            floor = max(floor, change)
    control = patches.clone()
    control[0, 1] = mirror(patches[0, 1])  # not a turn
    assert floor < 0.03
    assert (matrix(orbit_attention(control, group, bandwidth, sigma), 6) - weights).abs().max() > 4 * floor
    # A group with mirrors contains it.
    both = [matrix(orbit_attention(each, parse("d12"), bandwidth, sigma), 6) for each in (patches, control)]
    torch.testing.assert_close(*both)


def test_poses_between_the_elements_are_found(generator):
    angles = numbers(0.05, 0.31, 1.0, 1.9, 3.0, 4.4, 6.0)
    original = part(generator)
    patches = torch.cat([original[None], warp(original.expand(7, -1, -1, -1), rotation(angles))])[None]
    for name, most in (("c12", 3.0), ("c24", 1.0)):
        attended = orbit_attention(patches, parse(name), numbers(1.0), numbers(0.8)[0])
        poses = attended.poses[0, 0][attended.neighbours[0, 0].argsort()][1:]  # bring the copies onto the original
        left = poses @ rotation(angles)
        assert torch.atan2(left[:, 0, 1], left[:, 0, 0]).abs().max() < math.radians(most)


@pytest.mark.parametrize("name", ["c1", "c5", "d4"])
def test_gradients(name, generator):
    patches = parts(generator, 3, size=5, channels=2).requires_grad_()
    bandwidth, sigma = numbers(0.4, 0.9).requires_grad_(), torch.tensor(0.9, dtype=torch.float64, requires_grad=True)

    def call(patches, bandwidth, sigma):
        found = orbit_attention(patches, parse(name), bandwidth, sigma, neighbours=2)
        return found.means, found.weights, found.poses

    assert torch.autograd.gradcheck(call, (patches, bandwidth, sigma), fast_mode=True)


def test_the_gradient_goes_through_the_pose(generator):
    group, patches = parse("c8"), parts(generator, 4, size=7)
    sigma, direction = numbers(0.7)[0], torch.randn(4, 1, 7, 7, generator=generator, dtype=torch.float64)
    attended = orbit_attention(patches.requires_grad_(), group, numbers(0.5), sigma)
    aim = (attended.means[0, :, 0] * direction).sum()
    (whole,) = torch.autograd.grad(aim, patches)
    # The same means with the poses held: what a network would learn from if poses were constants.
    poses = attended.poses.detach()
    moving = patches[0][attended.neighbours[0]].flatten(0, 1)
    aligned = warp(moving, poses.flatten(0, 2)).unflatten(0, (4, 4))
    squared = smooth(aligned - patches[0, :, None], sigma).square().mean((-3, -2, -1))
    held = torch.einsum("nk,nkcyx->ncyx", (-squared / 0.5).softmax(1), aligned)
    torch.testing.assert_close(held, attended.means[0, :, 0])
    (without,) = torch.autograd.grad((held * direction).sum(), patches)
    step = 1e-5 * torch.randn(patches.shape, generator=generator, dtype=torch.float64)

    def value(at):
        return (orbit_attention(at, group, numbers(0.5), sigma).means[0, :, 0] * direction).sum()

    truth = (value(patches.detach() + step) - value(patches.detach() - step)) / 2
    error, control = ((truth - (grad * step).sum()).abs() for grad in (whole, without))
    assert error < 1e-6 * truth.abs()
    assert control > 1e-2 * truth.abs()


def test_wide_kernels_average_and_narrow_ones_do_not_change_patches(generator):
    group, patches = parse("c12"), parts(generator, 5)
    attended = orbit_attention(patches, group, numbers(1e-3, 1e6), numbers(0.5)[0])
    torch.testing.assert_close(attended.means[0, :, 0], patches[0])
    moving = patches[0][attended.neighbours[0]].flatten(0, 1)
    aligned = warp(moving, attended.poses.flatten(0, 2)).unflatten(0, (5, 5))
    torch.testing.assert_close(attended.means[0, :, 1], aligned.mean(1))
    torch.testing.assert_close(attended.weights.sum(2), torch.ones(1, 5, 2, dtype=torch.float64))


def test_only_the_nearest_patches_are_attended_to(generator):
    group, patches = parse("c8"), parts(generator, 6)
    patches[0, 4] = quarter_turn(patches[0, 1])
    everyone = matrix(orbit_attention(patches, group, numbers(0.3), numbers(0.5)[0]), 6)
    nearest = orbit_attention(patches, group, numbers(0.3), numbers(0.5)[0], neighbours=2)
    assert nearest.weights.shape == (1, 6, 2, 1)
    assert nearest.neighbours[0].tolist()[1] == [1, 4]
    assert nearest.neighbours[0].tolist()[4] == [4, 1]
    # Each patch keeps itself and its nearest, with the ratio that they have among all.
    table = matrix(nearest, 6)
    expected = everyone * (table > 0)
    torch.testing.assert_close(table, expected / expected.sum(1, keepdim=True))
    alone = orbit_attention(patches, group, numbers(0.3), numbers(0.5)[0], neighbours=1)
    assert torch.equal(alone.means[0, :, 0], patches[0])


def test_a_symmetric_patch_is_not_rotated_onto_itself():
    # A disc is the same at every angle, so any pose is as good; for itself a patch must have the identity.
    disc = orbit_mask(parse("c8"), 7)[None].expand(3, 1, 7, 7)[None].clone().requires_grad_()
    attended = orbit_attention(disc, parse("c8"), numbers(0.1), numbers(0.5)[0])
    assert attended.neighbours[0, :, 0].tolist() == [0, 1, 2]
    assert torch.equal(attended.poses[0, :, 0], torch.eye(3, dtype=torch.float64).expand(3, 3, 3))
    blank = orbit_attention(torch.zeros_like(disc), parse("c8"), numbers(0.1), numbers(0.5)[0])
    assert not blank.means.any()
    attended.means.square().sum().backward()
    assert disc.grad.isfinite().all()


def test_a_window_limits_which_patches_are_attended_to(generator):
    table = window_candidates(3, 5, 3)
    assert table.shape == (15, 9)
    assert sorted(table[0].tolist()) == [-1, -1, -1, -1, -1, 0, 1, 5, 6]
    assert sorted(table[7].tolist()) == [1, 2, 3, 6, 7, 8, 11, 12, 13]
    torch.manual_seed(2)
    patches = parts(generator, 15, channels=2).unflatten(1, (3, 5))
    options = {"channels": 2, "patch_size": SIZE, "heads": 2, "bandwidth": 0.4}
    near = InvariantAttentionBlock("c8", window=3, **options).double()
    weights = matrix(near.attend(patches), 15)
    inside = (table[:, :, None] == torch.arange(15)).any(1)
    assert (weights[~inside] == 0).all()
    assert (weights[inside] > 0).all()
    # A patch outside the window has no effect, one inside has.
    changed = patches.clone()
    changed[0, 2, 4] = part(generator, channels=2)
    difference = (near(changed) - near(patches)).abs().amax((-3, -2, -1))[0]
    assert difference[:, :3].max() == 0
    assert difference[1:, 3:].min() > 0
    # A window over the whole grid equals no window.
    wide, whole = (InvariantAttentionBlock("c8", window=window, **options).double() for window in (9, None))
    whole.load_state_dict(wide.state_dict())
    torch.testing.assert_close(wide(patches), whole(patches))


def test_the_block_has_gradients_and_restores_its_state(generator):
    torch.manual_seed(3)
    patches = parts(generator, 6, channels=2).unflatten(1, (2, 3))
    block = InvariantAttentionBlock("c8", 2, SIZE, out_channels=3, heads=2, neighbours=4, bandwidth=0.3).double()
    found = block(patches)
    assert found.shape == (1, 2, 3, 3, SIZE, SIZE)
    found.square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad.abs().min() > 0, name
    # The operators are constants of the group and are not saved.
    assert set(block.state_dict()) == {"log_bandwidth", "log_smoothing", "value.weight"}
    other = InvariantAttentionBlock("c8", 2, SIZE, out_channels=3, heads=2, neighbours=4).double()
    assert not torch.allclose(other(patches), found)
    other.load_state_dict(block.state_dict())
    assert torch.equal(other(patches), found)


def test_autocast_keeps_the_precision_of_small_distances(generator):
    patches = parts(generator, 6).unflatten(1, (2, 3)).float()
    block = InvariantAttentionBlock("c8", 1, SIZE, bandwidth=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = block.attend(patches)
        assert block(patches).dtype == torch.bfloat16
    torch.testing.assert_close(mixed.weights, block.attend(patches).weights)


def test_equal_value_maps_give_the_invariant_mean(generator):
    patches = parts(generator, 6).unflatten(1, (2, 3))
    block = InvariantAttentionBlock("c8", 1, SIZE, bandwidth=0.3).double()
    with torch.no_grad():
        block.value.weight.fill_(1.0)
        torch.testing.assert_close(block(patches).flatten(1, 2)[:, :, None], block.attend(patches).means)


def test_the_embedding_is_linear_for_c1_and_invariant_for_rotations(generator):
    torch.manual_seed(4)
    patches = parts(generator, 6, channels=2).unflatten(1, (2, 3))
    plain, orbit = (OrbitEmbedding(name, 2, SIZE, 5).double() for name in ("c1", "c12"))
    torch.testing.assert_close(plain(patches), plain.linear(patches.flatten(1, 2).flatten(2)))
    assert count_parameters(plain) == count_parameters(orbit)
    turned = warp(patches.flatten(0, 2), parse("c12").elements[5]).reshape(patches.shape)
    errors = [(each(turned) - each(patches)).norm() / each(patches).norm() for each in (orbit, plain)]
    assert errors[0] < 0.05
    assert errors[1] > 5 * errors[0]
    torch.testing.assert_close(orbit(quarter_turn(patches, 3)), orbit(patches))


def test_the_network_is_invariant_to_the_turn_of_each_patch(generator):
    torch.manual_seed(5)
    images = torch.rand(2, 1, 14, 21, generator=generator)
    turned = images.clone()
    turned[..., 7:, :7] = quarter_turn(images[..., 7:, :7])
    turned[..., :7, 14:] = quarter_turn(images[..., :7, 14:], 2)
    sizes = {"patch_size": 7, "depth": 2, "neighbours": 3, "parameters": 9000}
    network, twin = (patch_net(name, 1, 3, (14, 21), **sizes).eval() for name in ("c8", "c1"))
    errors = [(each(turned) - each(images)).abs().max() for each in (network, twin)]
    assert errors[0] < 1e-5 < 1e-2 * errors[1]
    # If the whole image is rotated, patches are permuted and rotated.
    torch.testing.assert_close(network(quarter_turn(images)), network(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["invariant", "ordinary"])
def test_networks_have_the_requested_size(attention):
    network = patch_net("c8", 2, 5, 21, patch_size=7, attention=attention, parameters=16_000, depth=2)
    assert 0.99 * 16_000 < count_parameters(network) <= 16_000
    assert count_parameters(rebuild(baseline_description(network.description))) == count_parameters(network)


def test_smoothing_by_a_learnt_width(generator):
    image = torch.randn(7, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(smooth(image, sigma), smooth(image, 0.8))
    assert torch.autograd.gradcheck(smooth, (image, sigma))
    tiny = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    assert torch.equal(smooth(image, tiny), image)
    assert torch.autograd.grad(smooth(image, tiny).sum(), tiny)[0] == 0
    with pytest.raises(ValueError, match="sigma must be a finite"):
        smooth(image, math.nan)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InvariantAttentionBlock("se2", 1, 7), "finite group"),
        (lambda: InvariantAttentionBlock("dilations(2)", 1, 7), "closed"),
        (lambda: InvariantAttentionBlock("c4", 0, 7), "channels must be at least 1"),
        (lambda: InvariantAttentionBlock("c4", 1, 7, neighbours=0), "neighbours must be at least 1"),
        (lambda: InvariantAttentionBlock("c4", 1, 7, window=4), "odd"),
        (lambda: InvariantAttentionBlock("c4", 1, 7, bandwidth=0.0), "bandwidth must be a positive number"),
        (lambda: InvariantAttentionBlock("c4", 1, 7, smoothing=math.inf), "smoothing must be a positive number"),
        (lambda: InvariantAttentionBlock("c16", 1, 64), "smaller patches or fewer turns"),
        (lambda: InvariantAttentionBlock("c4", 1, 7)(torch.rand(2, 1, 14, 14)), "patches must be"),
        (lambda: InvariantAttentionBlock("c4", 1, 7)(torch.rand(1, 2, 2, 1, 7, 8)), "patches must be"),
        (lambda: OrbitEmbedding("c4", 1, 3, 2)(torch.ones(1, 2, 2, 1, 3, 3, dtype=torch.int64)), "floating point"),
        (lambda: patch_net("c4", 1, 3, 20, patch_size=7), "do not fill"),
        (lambda: patch_net("c4", 1, 3, 14, patch_size=7)(torch.rand(1, 1, 14, 15)), "do not fill"),
        (lambda: patch_net("c4", 1, 3, 14, patch_size=7, attention="soft"), "'invariant' or 'ordinary'"),
        (lambda: patch_net("c4", 1, 3, 14, patch_size=7, attention="ordinary", heads=5), "not a multiple"),
        (lambda: patch_net("c4", 1, 3, 14, patch_size=7, depth=0), "depth"),
        (lambda: patch_net("c4", 1, 3, 14, patch_size=7, parameters=100), "too few"),
    ],
    ids=[
        "continuous group", "no group", "no channels", "no neighbours", "even window", "no bandwidth",
        "endless smoothing", "large patches", "images", "oblong patches", "whole numbers", "size", "other size",
        "attention", "heads", "depth", "few parameters",
    ],
)  # fmt: skip
def test_wrong_arguments_raise_errors_that_say_what_is_needed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_shifts_are_found_and_left_out_by_default(generator):
    shifts = shift_poses(2.0)
    assert shifts.shape == (9, 3, 3)
    torch.testing.assert_close(shifts[0], torch.eye(3, dtype=torch.float64))
    patch = part(generator)
    group = parse("c8")
    pose = (shifts[5] @ group.elements[3]).to(patch)
    pair = torch.stack([patch, warp(patch[None], pose)[0]])[None]  # (1, 2, c, p, p)
    widths = torch.tensor([0.3], dtype=patch.dtype), torch.tensor(0.5, dtype=patch.dtype)
    plain = orbit_attention(pair, group, *widths)
    found = orbit_attention(pair, group, *widths, shift=2.0)
    torch.testing.assert_close(found.poses[0, 1, 1], pose, atol=0.05, rtol=0)  # brings the first onto the second
    assert found.weights[0, 1, 1] > 1.2 * plain.weights[0, 1, 1]
    with pytest.raises(ValueError, match="zero or more"):
        InvariantAttentionBlock("c4", 1, 7, shift=-1.0)
