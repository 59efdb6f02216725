"""equivariance_error: laws on functions whose error is known, and what it says to wrong calls."""

import numpy as np
import pytest
import torch
from torch import nn

from kit.group_networks import GroupConvolution, Lifting, Network
from kit.tensors import normal, uniform
from unpose.audit import audit_modules, equivariance_error, smooth_noise
from unpose.data import drawings
from unpose.groups import FiniteGroup, parse, rotation
from unpose.images import quarter_turn, smooth, warp


def random_conv(channels=2, seed=0, size=3):
    torch.manual_seed(seed)
    return nn.Conv2d(channels, 5, size, padding=size // 2)


def pooled(x):
    """Any function of quarter turns, averaged over them: invariant under c4 and under nothing else."""
    return sum(random_conv(size=5)(3 * quarter_turn(x, k)).relu().square().mean((2, 3)) for k in range(4))


def symmetric_conv(channels=2):
    conv = random_conv(channels, size=5)  # three pixels turned four times would have mirrors too
    with torch.no_grad():
        conv.weight.copy_(sum(quarter_turn(conv.weight, k) for k in range(4)) / 4)
    return conv


@pytest.mark.parametrize("frame", [(7, 7), (8, 8), (9, 13)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_function_pooled_over_quarter_turns_is_invariant_and_its_control_is_not(frame, dtype):
    measured = equivariance_error(lambda x: pooled(x.float()).to(dtype), smooth_noise(3, 2, frame).to(dtype), "c4")
    assert measured.errors.shape == (4,)
    assert measured.exact.all()
    assert measured.worst_exact < 1e-6
    assert measured.control == "mirror"
    assert measured.control_error > 1e-2
    assert not measured.floors.any()
    assert measured.holds()
    assert not measured.remarks()


@pytest.mark.parametrize("frame", [(7, 7), (9, 13)])
def test_a_symmetric_kernel_is_equivariant_and_a_random_one_is_not(frame):
    images = smooth_noise(3, 2, frame)
    right = equivariance_error(symmetric_conv(), images, "c4", "image")
    wrong = equivariance_error(random_conv(), images, "c4", "image")
    assert right.worst_exact < 1e-6 < 1e-2 < right.control_error
    assert wrong.errors[1:].min() > 1e-2
    assert not wrong.holds()


@pytest.mark.parametrize("group", ["c4", "d4"])
def test_group_layers_permute_the_group_axis(group):
    order = parse(group).order
    maps = normal(2, 3, order, 5, 7)
    lifted = equivariance_error(Lifting(group, 2, 3), smooth_noise(2, 2, (5, 7)), group, "regular image")
    moved = equivariance_error(GroupConvolution(group, 3, 2), maps, group, "regular image", input="regular image")
    pooled_pixels = equivariance_error(
        lambda x: GroupConvolution(group, 3, 2)(x).square().mean((-2, -1)),
        maps,
        group,
        "regular",
        input="regular image",
    )
    for measured in (lifted, moved, pooled_pixels):
        assert measured.worst_exact < 1e-6
        assert measured.control_error > 1e-2


def test_vectors_on_the_group_need_no_pixels():
    group = parse("d3")
    table = group.product[group.inverse]  # [h, k] -> h^-1 k
    weights, vectors = normal(6, seed=0), normal(4, 5, 6)
    right = equivariance_error(lambda x: x @ weights[table].mT, vectors, group, "regular", input="regular")
    wrong = equivariance_error(lambda x: x @ weights[group.product], vectors, group, "regular", input="regular")
    assert right.exact.all()
    assert right.worst_exact < 1e-6
    assert wrong.worst_exact > 1e-2


def test_another_group_axis():
    group = parse("c4")
    last = equivariance_error(
        lambda x: Lifting(group, 2, 3)(x).mean((-2, -1)).mT, smooth_noise(2, 2, (6, 6)), group, "regular", group_axis=-2
    )
    assert last.worst_exact < 1e-6


def test_a_constant_function_is_not_perfect():
    measured = equivariance_error(lambda x: torch.ones(len(x), 3), smooth_noise(3, 1, (8, 8)), "d4")
    assert measured.worst_exact == 0
    assert measured.discrimination == 0
    assert not measured.holds()
    assert "nearly constant" in str(measured)


def test_a_large_constant_hides_an_error_from_the_norm_but_not_from_the_discrimination():
    images = smooth_noise(3, 2, (7, 7)).double()
    conv = random_conv(size=5).double()
    plain = equivariance_error(lambda x: conv(x).amax((2, 3)), images, "c4")
    hidden = equivariance_error(lambda x: 1e4 + conv(x).amax((2, 3)), images, "c4")
    assert hidden.errors.max() < 1e-3 * plain.errors.max()
    assert hidden.worst_of_discrimination == pytest.approx(plain.worst_of_discrimination, rel=1e-6)
    # in double precision a spread of 1e-6 of the norm is no rounding, and a constant is
    assert not hidden.is_nearly_constant
    assert equivariance_error(lambda x: 1e9 + 1e-7 * conv(x).amax((2, 3)), images, "c4").is_nearly_constant


def test_discrimination_is_near_one_where_every_input_has_its_own_output():
    measured = equivariance_error(lambda x: torch.eye(len(x)), smooth_noise(31, 1, (8, 8)), "c2")
    assert measured.discrimination == pytest.approx((30 / 31) ** 0.5)


def test_the_error_is_the_relative_norm_by_hand():
    images = smooth_noise(3, 1, (7, 7)).double()
    weight = torch.arange(49.0, dtype=torch.float64).reshape(7, 7)
    measured = equivariance_error(lambda x: (weight * x).sum((2, 3)), images, "c4")
    base, moved = (weight * images).sum((2, 3)), (weight * quarter_turn(images)).sum((2, 3))
    assert measured.errors[1] == pytest.approx(float((moved - base).norm() / base.norm()))
    gaps = (moved - base).abs()[:, 0] / base.square().mean().sqrt()
    np.testing.assert_allclose(measured.by_input[1], gaps, rtol=1e-12)
    assert measured.errors[1] == pytest.approx(np.sqrt(np.mean(measured.by_input[1] ** 2)))
    assert measured.elements == ("identity", "turn 90", "turn 180", "turn 270")


def strokes(softness):
    """The drawn seven at 28 pixels, and a dimmer one; ``softness`` of the pen in pixels."""
    drawn = torch.from_numpy(drawings(28)[1]).movedim(-1, 0)[None]  # (1, 3, 28, 28)
    return smooth(torch.cat([drawn, drawn / 2]), softness)


def test_the_floor_of_strokes():
    # A pen of 1.4 pixels is finer than that of handwritten digits; half a pixel softer it is like theirs.
    measured = equivariance_error(lambda x: x.flatten(1), strokes(0.5), "c16")
    resampled = measured.input_floors[~measured.exact]
    assert 0.06 < resampled.min() < resampled.max() < 0.10
    assert (measured.input_floors[measured.exact] == 0).all()
    # f is the image itself: what turning there and back does to f is what it does to the pixels
    np.testing.assert_allclose(measured.floors, measured.input_floors, rtol=1e-5)
    assert equivariance_error(lambda x: x.flatten(1), strokes(0), "c16").input_floors.max() > 0.12


def test_the_floor_of_handwritten_digits(real_data):
    digits = torch.from_numpy(real_data("mnist.npz")["x_train"][:100]).reshape(-1, 1, 28, 28) / 255
    measured = equivariance_error(lambda x: x.flatten(1), digits, "c8")
    assert 0.07 < measured.input_floors[1] < 0.11


def test_only_interpolation_separates_a_round_blur_from_equivariance_under_any_turn():
    measured = equivariance_error(lambda x: smooth(x, 2.0), strokes(0), "c12", "image")
    assert measured.worst_exact < 1e-6
    resampled = ~measured.exact
    assert (measured.errors[resampled] < measured.floors[resampled]).all()
    # and what is not equivariant stands well above its floor
    ramp = torch.linspace(0, 2, 28)
    broken = equivariance_error(lambda x: smooth(ramp * x, 2.0), strokes(0), "c12", "image")
    assert (broken.errors[resampled] > 2 * broken.floors[resampled]).all()


def test_an_average_over_eight_turns_is_nearer_its_floor_than_one_over_four():
    def averaged(turns):
        poses = rotation(torch.arange(turns) * (2 * torch.pi / turns))
        return lambda x: sum(random_conv(1, size=5)(warp(x, pose)).relu().square().mean((2, 3)) for pose in poses)

    eight, four = (equivariance_error(averaged(turns), strokes(0.7)[:, :1], "c8") for turns in (8, 4))
    odd = ~eight.exact
    assert (eight.errors[odd] < eight.floors[odd]).all()
    assert (four.errors[odd] > 2 * four.floors[odd]).all()


@pytest.mark.parametrize(
    ("group", "control"),
    [
        ("c1", "mirror"), ("c4", "mirror"), ("c16", "mirror"), ("d1", "turn 180"), ("d2", "turn 90"),
        ("d3", "turn 180"), ("d4", "turn 45"), ("d8", "turn 22.5"), ("d16", "turn 11.25"), ("se2", "mirror"),
        ("translation+mirror", "turn 180"), ("se2+mirror", "stretch 1.3"), ("similarity+mirror", "stretch 1.3"),
        ("affine+mirror", "quadrants swapped"), ("perspective+mirror", "quadrants swapped"),
        ("dilations(2, 1.5)", "mirror"),
    ],
)  # fmt: skip
def test_the_control_lies_outside_the_group_and_is_noticed(group, control):
    weights = normal(31, 1, 19, 19)
    measured = equivariance_error(
        lambda x: nn.functional.conv2d(x, weights)[..., 0, 0], smooth_noise(3, 1, (19, 19)), group, n_elements=3
    )
    assert measured.control == control
    assert measured.control_error > 1e-2
    found = parse(group)  # of a continuous group, the exact elements and three others are tried
    assert len(measured.elements) == (len(found) if isinstance(found, FiniteGroup) else 3 + measured.exact.sum())


def test_continuous_groups_are_drawn_by_seed():
    images = strokes(1.0)
    draw = [equivariance_error(lambda x: x.sum((2, 3)), images, "se2", n_elements=5, random_state=s) for s in (3, 3, 4)]
    np.testing.assert_array_equal(draw[0].errors, draw[1].errors)
    assert draw[0].elements == draw[1].elements != draw[2].elements
    # mass is kept by turns and shifts, as far as resampling keeps it
    assert draw[0].errors.max() < 0.01
    only_shifts = equivariance_error(lambda x: x.sum((2, 3)), smooth_noise(3, 1, (19, 19)), "translation", n_elements=3)
    assert "compare each error with its floor" in str(only_shifts)
    assert not only_shifts.decides
    assert draw[0].decides


def test_shifts_shrink_with_the_stride_of_the_output():
    group = FiniteGroup("shift by two", tuple(((1.0, 0.0, x), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)) for x in (0.0, 2.0)))
    strided = equivariance_error(lambda x: nn.functional.avg_pool2d(x, 2), strokes(0), group, "image")
    cropped = equivariance_error(lambda x: x[..., 2:-2, 2:-2], strokes(0), group, "image")
    assert strided.errors[1] < 1e-6
    assert cropped.errors[1] < 1e-6


def test_a_scale_space_shifts_along_the_axis_of_scales():
    group = parse("dilations(3, 1.5)")

    def blurs(x):  # place s: blurred by 1.5^s pixels; a larger image needs a larger blur
        return torch.stack([smooth(x, 1.5 * 1.5**s) for s in range(3)], dim=2)

    images = torch.zeros(2, 1, 43, 43)
    images[0, 0, 19:24, 17:26] = 1
    images[1, 0, 20:22, 19:23] = 1
    measured = equivariance_error(blurs, smooth(images, 1.0), group, "regular image")
    flipped = equivariance_error(lambda x: blurs(x).flip(2), smooth(images, 1.0), group, "regular image")
    assert (measured.errors[1:] < 0.1).all()
    assert (flipped.errors[1:] > 0.15).all()


def test_a_module_is_measured_without_dropout_and_put_back():
    network = nn.Sequential(Lifting("c4", 2, 3), nn.Dropout(0.5))
    network[0].eval()
    assert equivariance_error(network, smooth_noise(2, 2, (7, 7)), "c4", "regular image").holds()
    assert network.training
    assert network[1].training
    assert not network[0].training


def test_what_is_random_shows_in_the_identity():
    measured = equivariance_error(lambda x: nn.functional.dropout(x, 0.5), smooth_noise(2, 1, (7, 7)), "c4", "image")
    assert measured.errors[0] > 0.1
    assert "not repeatable" in str(measured)


def test_arrays_may_come_back_as_from_an_estimator():
    measured = equivariance_error(lambda x: np.sort(x.flatten(1).numpy(), axis=1), smooth_noise(2, 1, (7, 7)), "d4")
    assert measured.worst_exact == 0


def test_the_table_has_a_line_per_element():
    lines = str(equivariance_error(Network("c4"), smooth_noise(3, 2, (8, 8)), "c8")).splitlines()
    assert len(lines) == 1 + 8 + 1 + 2
    assert "exact" in lines[3]
    assert "turn 45" in lines[2]
    assert "exact" not in lines[2]
    assert lines[-3].startswith("control: mirror")


def test_mirror_of_a_regular_output_tries_every_answer():
    # Equivariant under d4 and read as c4: the mirror is answered by a conjugation, and must not look like a failure.
    group = parse("c4")

    def crossed(x):  # place h: the image seen from h, its mean under a mirror-symmetric mask
        mask = torch.linspace(0, 1, 9)[:, None].expand(9, 9)
        return torch.stack([(mask * quarter_turn(x, -h)).mean((-2, -1)) for h in range(4)], dim=2)

    measured = equivariance_error(crossed, smooth_noise(2, 2, (9, 9)), group, "regular")
    assert measured.worst_exact < 1e-6
    assert measured.control_error < 1e-6
    assert "its group may be larger" in str(measured)


@pytest.mark.parametrize(
    ("f", "group", "options", "message"),
    [
        (lambda x: x.sum((2, 3))[:1], "c4", {}, "one output per input"),
        (lambda x: x.sum(), "c4", {}, "one output per input"),
        (lambda x: x / 0, "c4", {}, "NaN or infinite"),
        (lambda x: [1, 2], "c4", {}, "tensor or an array, got list"),
        (lambda x: (x, x), "c4", {}, "got tuple"),
        (lambda x: x.sum((2, 3)), "c4", {"output": "image"}, "at least 3 axes"),
        (lambda x: x.sum((2, 3)), "c4", {"output": "vector"}, "'regular image'"),
        (lambda x: x, "c4", {"output": "regular"}, "must have 4 entries"),
        (lambda x: x.sum((2, 3)), "c4", {"output": "regular"}, "no group axis 2"),
        (lambda x: x, "se2", {"output": "regular"}, "finite group"),
        (lambda x: x, "so3", {}, "acts on points in space"),
        (lambda x: x, "q8", {}, "unknown group 'q8'"),
        (lambda x: x, "c4", {"input": "invariant"}, "does not transform"),
        (lambda x: x, "c4", {"input": "regular", "output": "image"}, "input with pixels"),
        (lambda x: x, "dilations(4, 2)", {}, "larger images"),
        (lambda x: x.reshape(2, 1, 9, 4)[..., :3] if x.mean() else x, "c4", {"output": "image"}, "would be"),
    ],
)
def test_wrong_calls_say_what_is_wrong(f, group, options, message):
    with pytest.raises(ValueError, match=message):
        equivariance_error(f, smooth_noise(2, 1, (6, 6)), group, **options)


def test_wrong_inputs_say_what_is_wrong():
    good = smooth_noise(2, 1, (6, 6))
    for inputs, message in [
        (good[:0], "empty"), (good[:1], "two different inputs"), (good[:1].repeat(3, 1, 1, 1), "two different inputs"),
        (good[0], r"\(n, c, h, w\)"), (good.numpy(), "as_batch"), (good.int(), "int32"), (good * torch.nan, "NaN"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            equivariance_error(lambda x: x, inputs, "c4")
    with pytest.raises(ValueError, match="Give square images"):
        equivariance_error(lambda x: x * torch.ones(5, 8), smooth_noise(2, 1, (5, 8)), "c4", "image")


def test_smooth_noise_is_seeded_and_has_no_empty_shape():
    assert torch.equal(smooth_noise(2, 3, (5, 7), random_state=4), smooth_noise(2, 3, (5, 7), random_state=4))
    assert not torch.equal(smooth_noise(2, 3, (5, 7)), smooth_noise(2, 3, (5, 7), random_state=4))
    assert smooth_noise(2, 1, (1, 1)).shape == (2, 1, 1, 1)
    with pytest.raises(ValueError, match="at least one"):
        smooth_noise(2, 0, (5, 7))


def test_of_a_continuous_group_the_quarter_turns_decide():
    images = smooth_noise(5, 1, (12, 12))
    weights = uniform(12, 12)
    measured = equivariance_error(lambda x: (x * weights).sum((2, 3)), images, "se2")
    assert measured.elements[:4] == ("identity", "turn 90", "turn 180", "turn 270")
    assert not measured.holds()
    assert equivariance_error(lambda x: x.square().sum((2, 3)), images, "se2", n_elements=3).holds()
    # a quarter turn would swap the sides, which a function of one size cannot take
    oblong = smooth_noise(5, 1, (12, 16))
    found = equivariance_error(lambda x: x.flatten(1) @ normal(192, 3), oblong, "se2+mirror", n_elements=2)
    assert found.elements[:4] == ("identity", "turn 180", "mirror", "mirror, turn 180")
    assert len(found.elements) == 6


def test_a_function_that_works_in_place_is_measured_like_any_other():
    images = smooth_noise(5, 1, (12, 12))
    before = images.clone()
    network = torch.nn.Sequential(torch.nn.SiLU(inplace=True), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    assert equivariance_error(network, images, "c4", random_state=np.int64(3)).holds()
    assert audit_modules(network, images, "c4").culprits == ()
    assert torch.equal(images, before)


def test_a_module_whose_error_is_caught_above_does_not_upset_the_trace():
    class Failing(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    class Catching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Failing(), torch.nn.AdaptiveAvgPool2d(1)

        def forward(self, x):
            try:
                return self.first(x)
            except RuntimeError:
                return self.second(x).flatten(1)

    assert audit_modules(Catching(), smooth_noise(5, 1, (12, 12)), "c4").culprits == ()
