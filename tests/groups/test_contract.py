"""What every group must be, those of the plane, of space and the finite ones: a new group needs no line here.

Continuous groups are tested in single and double precision, at zero and at half a turn, against the matrix exponential.
"""

import math

import pytest
import scipy.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

from unpose.groups import CONTINUOUS, NO_ELEMENT, SPACE, parse, reflection, transform

pytestmark = pytest.mark.laws

LIE = [name for kind in CONTINUOUS | SPACE for name in (kind, f"{kind}+mirror")]
FINITE = ["c1", "c2", "c3", "c4", "c7", "c12", "d1", "d2", "d3", "d4", "d6", "dilations(4, 1.25)"]
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(params=LIE)
def group(request):
    return parse(request.param)


@pytest.fixture(params=DTYPES)
def dtype(request):
    return DTYPES[request.param]


@pytest.fixture(params=FINITE)
def finite(request):
    return parse(request.param)


def close(dtype):
    return {"rtol": 1e-4, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}


def kinds_of_coordinates(group):
    """Which coordinates shift, turn, and deform: (dim,) bool each."""
    linear = group.generators[:, :-1, :-1]
    turns = (linear == -linear.mT).flatten(1).all(1) & (linear != 0).flatten(1).any(1)
    scale = linear[:, :1, :1] * torch.eye(linear.shape[-1])
    shifts = group.generators[:, :-1, -1].ne(0).any(1)
    return shifts, turns, ~shifts & ~turns & (linear != scale).flatten(1).any(1) | group.generators[:, -1].ne(0).any(1)


ANGLES = [0.0, 1e-1, 1e-2, 1e-4, 1e-7, 1e-12, 0.2236, 0.2237]
NEAR_HALF_A_TURN = [share * math.pi for share in (1, -1, 1 - 1e-3, 1 - 1e-6, 0.5, 1 - 1e-9)]


def twists(group, dtype=torch.float64, n=41, size=1.0):
    """Random algebra elements of about the same effect; among them zero, tiny ones, half a turn and turns close to it.

    At half a turn nothing is stretched: that has no real logarithm.
    """
    generator = torch.Generator().manual_seed(3)
    shifts, turns, deforms = kinds_of_coordinates(group)
    v = torch.randn(n, group.dim, generator=generator, dtype=torch.float64)
    v *= size * torch.where(shifts, 17.0, 2.0 / group.units(10.0))
    v[1:6] *= torch.tensor([1e-2, 1e-3, 1e-4, 1e-6, 1e-9], dtype=torch.float64)[:, None]
    if turns.any():
        axis = torch.nn.functional.normalize(torch.randn(n, int(turns.sum()), generator=generator).double(), dim=1)
        angle = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
        special = ANGLES + NEAR_HALF_A_TURN[: 5 if group.deforms else 6]  # their logarithm takes square roots
        angle[: len(special), 0] = torch.tensor(special, dtype=torch.float64)
        v[:, turns] = axis * angle
        v[len(ANGLES) : len(special), deforms] = 0
    v[0] = 0
    return v.to(dtype)


def angles(group, v):
    return v[:, kinds_of_coordinates(group)[1]].double().norm(dim=1)


def test_exp_is_the_matrix_exponential(group, dtype):
    v = twists(group, dtype)
    algebra = group.hat(v.double())
    expected = torch.stack([torch.from_numpy(scipy.linalg.expm(m)) for m in algebra.numpy()])
    torch.testing.assert_close(group.exp(v), expected.to(dtype), **close(dtype))
    torch.testing.assert_close(group.exp(v), torch.matrix_exp(algebra).to(dtype), **close(dtype))


def test_log_inverts_exp_up_to_the_sign_at_half_a_turn(group, dtype):
    v = twists(group, dtype)
    elements = group.exp(v)
    found = group.log(elements)
    torch.testing.assert_close(group.exp(found), elements, **close(dtype))
    below = angles(group, v) < 0.9 * math.pi
    assert below.sum() >= len(v) - 8
    torch.testing.assert_close(found[below], v[below], **close(dtype))
    torch.testing.assert_close(angles(group, found), angles(group, v), rtol=1e-5, atol=1e-6)


def test_axioms_and_closure(group, dtype, generator):
    a, b, c = group.random(3 * 17, generator=generator, dtype=dtype).unflatten(0, (3, 17))
    eye = group.identity(dtype).expand_as(a)
    torch.testing.assert_close((a @ b) @ c, a @ (b @ c), **close(dtype))
    torch.testing.assert_close(group.inverse(a) @ a, eye, **close(dtype))
    torch.testing.assert_close(a @ group.inverse(a), eye, **close(dtype))
    points = torch.randn(17, 5, a.shape[-1] - 1, generator=generator, dtype=torch.float64).to(dtype)
    torch.testing.assert_close(transform(a @ b, points), transform(a, transform(b, points)), **close(dtype))
    for elements in (a, a @ b, group.inverse(a), group.identity(dtype), group.exp(twists(group, dtype))):
        assert group.contains(elements).all()
    assert group.random(0, generator=generator, dtype=dtype).shape == (0, *a.shape[1:])


def test_the_mirror_belongs_to_mirrored_groups_and_has_no_logarithm(group, dtype):
    mirror = group.identity(dtype).clone()
    mirror[0, 0] = -1
    assert group.contains(mirror) == group.mirrored
    with pytest.raises(ValueError, match="no logarithm"):
        group.log(mirror)


def test_projection_leaves_elements_and_finds_the_nearest(group, dtype, generator):
    elements = group.random(19, generator=generator, dtype=dtype)
    torch.testing.assert_close(group.project(elements), elements, **close(dtype))
    noisy = elements.clone()
    noisy[:, :-1] += 0.03 * torch.randn(noisy[:, :-1].shape, generator=generator).to(dtype)
    nearest = group.project(noisy)
    assert group.contains(nearest).all()
    if group.deforms:
        return
    # No other element is nearer in the linear part: try many, near the answer and anywhere.
    near = nearest @ group.exp(1e-2 * torch.randn(19, group.dim, generator=generator).to(dtype))
    others = torch.cat([group.random(200, generator=generator, dtype=dtype), near, elements])

    def gap(one, two):
        return (one - two)[..., :-1, :-1].square().sum((-1, -2))

    assert (gap(nearest, noisy) <= gap(others[:, None], noisy).amin(0) + 1e-6).all()


def test_units_say_how_far_a_step_moves_a_point(group):
    """A point at this distance from the centre, in the direction in which the step moves it farthest."""
    radius, step = 10.0, 1e-6
    turn = torch.arange(360, dtype=torch.float64) * (math.pi / 180)
    points = torch.zeros(3, 360, group.ndim, dtype=torch.float64)  # on circles about the axes
    for circle, (one, two) in zip(points, [(0, 1), (0, -1), (1, -1)], strict=True):
        circle[:, one], circle[:, two] = radius * turn.cos(), radius * turn.sin()
    points = points[: 1 if group.ndim == 2 else 3].flatten(0, 1)
    moved = transform(group.exp(step * torch.eye(group.dim, dtype=torch.float64)), points) - points
    farthest = moved.norm(dim=-1).amax(-1) / step
    torch.testing.assert_close(farthest, group.units(radius).double(), rtol=1e-3, atol=1e-3)


def test_random_elements_are_the_same_in_every_precision_and_follow_their_seed(group):
    one, two, again = (
        group.random(5, generator=torch.Generator().manual_seed(1), dtype=dtype)
        for dtype in (torch.float32, torch.float64, torch.float64)
    )
    torch.testing.assert_close(one.double(), two, rtol=1e-6, atol=1e-6)
    assert torch.equal(two, again)


def test_half_of_the_elements_of_a_mirrored_group_mirror(group, generator):
    elements = group.random(997, generator=generator, dtype=torch.float64)
    mirroring = (torch.linalg.det(elements[:, :-1, :-1]) < 0).double().mean()
    assert 0.4 < mirroring < 0.6 if group.mirrored else mirroring == 0


def test_shapes_and_bounds_are_checked(group):
    size = group.identity().shape[-1]
    with pytest.raises(ValueError, match=f"must end in {group.dim}"):
        group.exp(torch.zeros(group.dim + 1))
    with pytest.raises(ValueError, match=rf"must end in \({size}, {size}\)"):
        group.log(torch.zeros(size - 1, size - 1))
    for bound in ("max_angle", "max_shift"):
        with pytest.raises(ValueError, match=bound):
            group.random(3, **{bound: -1.0})


@pytest.mark.gradients
@pytest.mark.parametrize("kind", CONTINUOUS | SPACE)
def test_gradients_agree_with_finite_differences(kind):
    group = parse(kind)
    half_a_turn = len(ANGLES)
    v = twists(group, size=0.05)[[0, half_a_turn, 3, 20, 21]].requires_grad_()
    assert gradcheck(group.exp, v, fast_mode=True)
    assert gradcheck(lambda v: group.inverse(group.exp(v)) @ group.exp(0.5 * v), v, fast_mode=True)
    assert gradgradcheck(group.exp, v[3:], fast_mode=True)
    # Finite differences leave the group; what matters is the derivative along it.
    elements, near = group.exp(v.detach()), (0.1 * v.detach()[[0, 3, 4]]).requires_grad_()
    assert gradcheck(lambda v: group.log(elements[[0, 3, 4]] @ group.exp(v)), near, fast_mode=True)
    elements.requires_grad_()
    (gradient,) = torch.autograd.grad(group.log(elements).square().sum(), elements)
    assert torch.isfinite(gradient).all()


def test_the_table_is_matrix_multiplication(finite):
    table, n = finite.product, finite.order
    assert finite.elements.shape == (n, 3, 3)
    assert len(finite) == n
    products, known = finite.elements[:, None] @ finite.elements[None, :], table != NO_ELEMENT
    torch.testing.assert_close(finite.elements[table[known]], products[known])
    apart = (products[~known][:, None] - finite.elements).abs().amax((-1, -2))
    assert (apart > 1e-6).all()
    assert bool(known.all()) == finite.is_group


def test_axioms_of_the_table(finite):
    table, everything, inverse = finite.product, torch.arange(finite.order), finite.inverse
    assert torch.equal(table[0], everything)
    assert torch.equal(table[:, 0], everything)
    has_inverse = inverse != NO_ELEMENT
    assert (table[inverse[has_inverse], everything[has_inverse]] == 0).all()
    assert (table[everything[has_inverse], inverse[has_inverse]] == 0).all()
    if not finite.is_group:
        return
    assert has_inverse.all()
    a, b, c = torch.meshgrid(everything, everything, everything, indexing="ij")
    assert torch.equal(table[table[a, b], c], table[a, table[b, c]])
    assert finite.is_abelian == torch.equal(table, table.T)


def test_the_regular_representation_multiplies_like_the_table(finite):
    matrices, table = finite.regular_representation, finite.product
    products = matrices[:, None] @ matrices[None, :]
    known = table != NO_ELEMENT
    assert torch.equal(products[known], matrices[table[known]])
    assert torch.equal(matrices[0], torch.eye(finite.order, dtype=torch.float64))
    assert (matrices[1:].diagonal(dim1=1, dim2=2) == 0).all()  # faithful: only the identity has fixed points
    assert (matrices.sum(1) == 1).all() or not finite.is_group


@pytest.mark.parametrize(
    "name", [*LIE, *FINITE, "p4", "p4m", "o3", "e3", "dilations(3)", "dilations(3, 1.41421356)", "dilations(2, 1e+20)"]
)
def test_names_are_read_and_written(name):
    group = parse(name)
    assert parse(repr(group)) == group
    assert parse(group) is group
    assert parse(name.upper()) == group


def test_a_mirror_of_the_plane_is_that_of_the_groups(dtype):
    assert parse("se2+mirror").contains(reflection(dtype))
