"""The laws of every continuous group, in single and double precision, at zero and at half a turn."""

import itertools
import math

import pytest
import scipy.linalg
import torch

from unpose.groups import CONTINUOUS, area_change, inverse, parse, reflection, rotation, transform

pytestmark = pytest.mark.laws

KINDS = list(CONTINUOUS)
NAMES = KINDS + [f"{kind}+mirror" for kind in KINDS]
CHAINS = [["translation", "se2", "similarity", "affine", "perspective"], ["so2", "se2"]]
DTYPES = [torch.float32, torch.float64]
# typical sizes: pixels, radians, logarithms, 1/pixel
SIZES = {
    "x": 17.0,
    "y": 17.0,
    "turn": 1.0,
    "log scale": 0.3,
    "stretch": 0.2,
    "shear": 0.2,
    "tilt x": 2e-3,
    "tilt y": 2e-3,
}


def tolerance(dtype):
    return {"rtol": 1e-4, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}


def twists(group, dtype, n=41):
    """Random algebra elements; among them zero, tiny ones, half a turn and turns close to it."""
    generator = torch.Generator().manual_seed(3)
    names = [coordinate.name for coordinate in group.coordinates]
    sizes = torch.tensor([SIZES[name] for name in names], dtype=torch.float64)
    v = torch.randn(n, group.dim, generator=generator, dtype=torch.float64) * sizes
    v[0] = 0
    v[1:6] *= torch.tensor([1e-2, 1e-3, 1e-4, 1e-6, 1e-9], dtype=torch.float64)[:, None]
    if group.turns:
        turn = names.index("turn")
        v[6:12, turn] = torch.tensor([1.0, -1.0, 0.999, -0.999, 0.999999, 0.5], dtype=torch.float64) * math.pi
        # Half a turn with a stretch has no real logarithm (see the test of the error).
        v[6:12, [name in ("stretch", "shear", "tilt x", "tilt y") for name in names]] = 0
        v[:, turn] = v[:, turn].clamp(-math.pi, math.pi)
        v[:6, turn] = v[:6, turn].clamp(-1, 1)
    return v.to(dtype)


@pytest.fixture(params=NAMES)
def group(request):
    return parse(request.param)


@pytest.fixture(params=DTYPES, ids=["float32", "float64"])
def dtype(request):
    return request.param


def test_exp_is_the_matrix_exponential(group, dtype):
    v = twists(group, dtype)
    expected = torch.stack([torch.from_numpy(scipy.linalg.expm(m)) for m in group.hat(v.double()).numpy()])
    torch.testing.assert_close(group.exp(v), expected.to(dtype), **tolerance(dtype))
    torch.testing.assert_close(group.exp(v), torch.matrix_exp(group.hat(v).double()).to(dtype), **tolerance(dtype))


def test_exp_of_log_is_the_element(group, dtype):
    elements = group.exp(twists(group, dtype))
    torch.testing.assert_close(group.exp(group.log(elements)), elements, **tolerance(dtype))


def test_log_of_exp_is_the_twist_within_half_a_turn(group, dtype):
    v = twists(group, dtype)
    if group.turns:
        turn = [coordinate.name for coordinate in group.coordinates].index("turn")
        v = v[v[:, turn].abs() < 0.9 * math.pi]
    torch.testing.assert_close(group.log(group.exp(v)), v, **tolerance(dtype))


def test_inverse(group, dtype, generator):
    elements = group.random(23, generator=generator, dtype=dtype)
    eye = torch.eye(3, dtype=dtype).expand(23, 3, 3)
    torch.testing.assert_close(group.inverse(elements) @ elements, eye, **tolerance(dtype))
    torch.testing.assert_close(elements @ group.inverse(elements), eye, **tolerance(dtype))


def test_associativity(group, dtype, generator):
    a, b, c = group.random(3 * 11, generator=generator, dtype=dtype).reshape(3, 11, 3, 3)
    torch.testing.assert_close((a @ b) @ c, a @ (b @ c), **tolerance(dtype))


def test_closure(group, dtype, generator):
    a, b = group.random(2 * 29, generator=generator, dtype=dtype).reshape(2, 29, 3, 3)
    for elements in (a, a @ b, group.inverse(a), group.identity(dtype), group.exp(twists(group, dtype))):
        assert group.contains(elements).all()


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0])
def test_larger_groups_contain_smaller_ones_and_not_the_other_way_round(chain, generator):
    for small, large in itertools.pairwise(chain):
        elements = parse(small).random(13, generator=generator, dtype=torch.float64)
        assert parse(large).contains(elements).all()
        elements = parse(large).random(13, generator=generator, dtype=torch.float64)
        assert not parse(small).contains(elements).any()


def test_so2_turns_about_the_centre_and_does_not_shift(generator):
    so2, angle = parse("so2"), torch.tensor([0.3], dtype=torch.float64)
    torch.testing.assert_close(so2.exp(angle), rotation(angle[0]))
    elements = parse("se2").random(13, generator=generator, dtype=torch.float64)
    nearest = so2.project(elements)
    assert (nearest[:, :2, 2] == 0).all()
    torch.testing.assert_close(nearest[:, :2, :2], elements[:, :2, :2])
    assert (so2.random(13, generator=generator, max_shift=9.0)[:, :2, 2] == 0).all()


def test_a_group_says_what_a_search_needs():
    def properties(kind):
        group = parse(kind)
        return group.shifts, group.turns, group.scales, group.deforms, group.is_isometric, group.is_projective

    assert properties("translation") == (True, False, False, False, True, False)
    assert properties("so2") == (False, True, False, False, True, False)
    assert properties("se2") == (True, True, False, False, True, False)
    assert properties("similarity") == (True, True, True, False, False, False)
    assert properties("affine") == (True, True, True, True, False, False)
    assert properties("perspective") == (True, True, True, True, False, True)


def test_units_say_how_far_a_step_moves_a_pixel(group):
    # A pixel at this distance from the centre, in the direction in which the step moves it farthest.
    radius, step = 10.0, 1e-6
    angles = torch.arange(360, dtype=torch.float64) * (math.pi / 180)
    points = radius * torch.stack([angles.cos(), angles.sin()], dim=-1)  # (360, 2)
    moved = transform(group.exp(step * torch.eye(group.dim, dtype=torch.float64)), points) - points
    farthest = moved.norm(dim=-1).amax(-1) / step
    torch.testing.assert_close(farthest, group.units(radius).double(), rtol=1e-3, atol=1e-3)


def test_mirror_belongs_only_to_mirrored_groups(dtype):
    for kind in KINDS:
        assert not parse(kind).contains(reflection(dtype))
        assert parse(f"{kind}+mirror").contains(reflection(dtype))


def test_project_leaves_elements_and_finds_the_nearest(group, dtype, generator):
    elements = group.random(19, generator=generator, dtype=dtype)
    torch.testing.assert_close(group.project(elements), elements, **tolerance(dtype))
    noisy = elements + 0.03 * torch.randn(elements.shape, generator=generator).to(dtype) * torch.tensor(
        [[1.0], [1.0], [0]]
    )
    nearest = group.project(noisy)
    assert group.contains(nearest).all()
    if group.deforms:
        return
    # No other element is nearer in the linear part: try many, near the answer and anywhere.
    gap = (nearest - noisy)[:, :2, :2].square().sum((-1, -2))
    others = torch.cat(
        [
            group.random(200, generator=generator, dtype=dtype),
            nearest @ group.exp(1e-2 * torch.randn(19, group.dim, generator=generator).to(dtype)),
            elements,
        ]
    )
    others_gap = (others[:, None] - noisy)[..., :2, :2].square().sum((-1, -2)).amin(0)
    assert (gap <= others_gap + 1e-6).all()


@pytest.mark.parametrize("kind", ["affine", "perspective"])
def test_project_refuses_what_has_no_nearest_element(kind):
    with pytest.raises(ValueError, match="no nearest element"):
        parse(kind).project(reflection(torch.float64))


def test_random_keeps_its_bounds(generator):
    group = parse("similarity+mirror")
    elements = group.random(997, generator=generator, dtype=torch.float64, max_angle=0.4, max_shift=3, max_scale=1.3)
    area = area_change(elements)
    assert 0.4 < (area < 0).double().mean() < 0.6
    assert area.abs().sqrt().max() <= 1.3
    assert area.abs().sqrt().min() >= 1 / 1.3
    unmirrored = torch.where((area < 0)[:, None, None], elements @ reflection(torch.float64), elements)
    angles = torch.atan2(unmirrored[:, 0, 1], unmirrored[:, 0, 0])
    assert 0.35 < angles.abs().max() <= 0.4
    assert 2.9 < elements[:, :2, 2].abs().max() <= 3


def test_random_is_the_same_in_every_precision_and_follows_its_seed():
    draws = [parse("affine").random(5, generator=torch.Generator().manual_seed(1), dtype=t) for t in DTYPES]
    torch.testing.assert_close(draws[0].double(), draws[1], rtol=1e-6, atol=1e-6)
    again = parse("affine").random(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(draws[1], again)


@pytest.mark.parametrize("bound", ["max_angle", "max_shift", "max_scale", "max_stretch", "max_tilt"])
def test_random_refuses_bounds_that_make_no_sense(bound):
    with pytest.raises(ValueError, match=bound):
        parse("se2").random(3, **{bound: -1.0})


def test_positive_angles_turn_counter_clockwise_on_screen():
    # A point right of the centre goes up, which is towards smaller y.
    right = torch.tensor([[1.0, 0.0]])
    up = transform(rotation(torch.tensor(math.pi / 2)), right)
    torch.testing.assert_close(up, torch.tensor([[0.0, -1.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(parse("se2").exp(torch.tensor([0, 0, 0.3])), rotation(torch.tensor(0.3)))


@pytest.mark.parametrize("name", NAMES)
def test_a_mirrored_element_has_no_logarithm(name):
    with pytest.raises(ValueError, match="no logarithm"):
        parse(name).log(reflection(torch.float64))


@pytest.mark.parametrize("kind", ["affine", "perspective"])
def test_reversing_two_axes_by_different_amounts_has_no_real_logarithm(kind):
    with pytest.raises(ValueError, match="no real logarithm"):
        parse(kind).log(torch.diag(torch.tensor([-1.0, -2.0, 1.0], dtype=torch.float64)))


def test_homographies_count_up_to_a_factor(generator):
    group = parse("perspective")
    elements = group.random(7, generator=generator, dtype=torch.float64)
    assert group.contains(-3.0 * elements).all()
    torch.testing.assert_close(group.project(-3.0 * elements), elements)
    torch.testing.assert_close(group.log(-3.0 * elements), group.log(elements))


def test_the_inverse_of_a_quarter_turn_is_exact():
    quarter = parse("c4").elements[1].float()
    assert torch.equal(inverse(quarter), parse("c4").elements[3].float())


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="must end in 3"):
        parse("se2").exp(torch.zeros(4))
    with pytest.raises(ValueError, match=r"must end in \(3, 3\)"):
        parse("se2").log(torch.zeros(2, 2))
