"""The laws of the groups of space, in single and double precision, at zero and at half a turn."""

import math

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from unpose.groups import inverse, parse, transform

pytestmark = pytest.mark.laws

NAMES = ["so3", "o3", "se3", "e3"]
DTYPES = [torch.float32, torch.float64]


def tolerance(dtype):
    return {"rtol": 1e-4, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}


def twists(group, dtype, n=53):
    """Random algebra elements; among them zero, tiny ones, half a turn and turns close to it."""
    generator = torch.Generator().manual_seed(3)
    v = torch.randn(n, group.dim, generator=generator, dtype=torch.float64)
    turn = v[:, -3:] / v[:, -3:].norm(dim=1, keepdim=True)
    angle = torch.rand(n, 1, generator=generator, dtype=torch.float64) * math.pi
    angle[1:8, 0] = torch.tensor([1e-1, 1e-2, 1e-4, 1e-7, 1e-12, 0.2236, 0.2237], dtype=torch.float64)
    angle[8:14, 0] = torch.tensor([1.0, 0.999, 0.999999, 1 - 1e-9, 0.5, 1.0], dtype=torch.float64) * math.pi
    turn[13] = torch.tensor([0.0, -1.0, 0.0])
    v[:, -3:] = turn * angle
    v[0] = 0
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
    assert group.contains(group.exp(v)).all()


def test_log_inverts_exp_up_to_the_sign_at_half_a_turn(group, dtype):
    v = twists(group, dtype)
    elements = group.exp(v)
    torch.testing.assert_close(group.exp(group.log(elements)), elements, **tolerance(dtype))
    below = v[:, -3:].double().norm(dim=1) < math.pi - 1e-3
    torch.testing.assert_close(group.log(elements)[below], v[below], **tolerance(dtype))
    half = torch.tensor([8, 13])
    turns = group.log(elements[half])[:, -3:]
    torch.testing.assert_close(turns.norm(dim=1), torch.full((2,), math.pi, dtype=dtype), rtol=1e-6, atol=0)
    aligned = (turns * v[half, -3:]).sum(1).abs().sqrt()
    torch.testing.assert_close(aligned, torch.full((2,), math.pi, dtype=dtype), rtol=1e-5, atol=0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(0, 7), name=st.sampled_from(NAMES))
def test_group_axioms(seed, n, name):
    group = parse(name)
    a, b, c = (
        group.random(n, generator=torch.Generator().manual_seed(seed + i), dtype=torch.float64) for i in range(3)
    )
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close((a @ b) @ c, a @ (b @ c), **close)
    torch.testing.assert_close(group.inverse(a) @ a, group.identity(torch.float64).expand(n, 4, 4), **close)
    assert group.contains(a @ b).all()
    points = torch.randn(n, 5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(transform(a @ b, points), transform(a, transform(b, points)), **close)
    lengths = torch.cdist(points, points)
    moved = transform(a, points)
    torch.testing.assert_close(torch.cdist(moved, moved), lengths, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(group.project(a), a, **close)


def test_random_rotations_are_uniform_and_keep_their_bounds():
    generator = torch.Generator().manual_seed(1)
    turns = parse("so3").random(4001, generator=generator, dtype=torch.float64)[:, :3, :3]
    # Under the uniform measure the entries have mean 0 and variance 1/3, and the squared trace has mean 1.
    assert turns.mean(0).abs().max() < 0.03
    assert (turns.square().mean(0) - 1 / 3).abs().max() < 0.03
    assert abs(float(turns.diagonal(dim1=1, dim2=2).sum(1).square().mean()) - 1) < 0.08
    bounded = parse("se3").random(301, generator=generator, max_angle=0.3, max_shift=2.0, dtype=torch.float64)
    angles = parse("se3").log(bounded)[:, 3:].norm(dim=1)
    assert 0.28 < angles.max() <= 0.3
    assert 1.9 < bounded[:, :3, 3].abs().max() <= 2
    mirrored = torch.linalg.det(parse("o3").random(501, generator=generator)[:, :3, :3])
    assert 0.4 < (mirrored < 0).double().mean() < 0.6
    draws = [parse("se3").random(3, generator=torch.Generator().manual_seed(2), dtype=each) for each in DTYPES]
    torch.testing.assert_close(draws[0].double(), draws[1], rtol=1e-6, atol=1e-6)


def test_project_finds_the_nearest(group, dtype):
    generator = torch.Generator().manual_seed(4)
    noisy = group.random(11, generator=generator, dtype=torch.float64)
    noisy[:, :3] += 0.1 * torch.randn(11, 3, 4, generator=generator, dtype=torch.float64)
    nearest = group.project(noisy.to(dtype)).double()
    assert group.contains(nearest.to(dtype)).all()
    others = torch.cat([nearest @ group.exp(0.02 * torch.randn(11, group.dim, generator=generator).double()),
                        group.random(300, generator=generator, dtype=torch.float64)])  # fmt: skip
    gap = (nearest - noisy)[:, :3, :3].square().sum((1, 2))
    others_gap = (others[:, None] - noisy)[..., :3, :3].square().sum((2, 3)).amin(0)
    assert (gap <= others_gap + 1e-5).all()


def test_which_group_holds_which():
    mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0, 1.0]))
    shift = torch.eye(4)
    shift[0, 3] = 2.0
    assert [bool(parse(name).contains(mirror)) for name in NAMES] == [False, True, False, True]
    assert [bool(parse(name).contains(shift)) for name in NAMES] == [False, False, True, True]
    assert not parse("e3").contains(2 * torch.eye(4))
    with pytest.raises(ValueError, match="no logarithm"):
        parse("e3").log(mirror)


def test_axes_are_right_handed_and_quarter_turns_invert_exactly():
    turn = parse("so3").exp(torch.tensor([0.0, 0.0, math.pi / 2]))
    moved = transform(turn, torch.eye(3))
    torch.testing.assert_close(moved, torch.tensor([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]), atol=1e-6, rtol=0)
    exact = turn.round()
    assert torch.equal(inverse(exact) @ exact, torch.eye(4))


def test_shapes_and_bounds_are_checked():
    with pytest.raises(ValueError, match=r"must end in \(4, 4\)"):
        parse("se3").log(torch.eye(3))
    with pytest.raises(ValueError, match="must end in 6"):
        parse("se3").exp(torch.zeros(3))
    for bad in ({"max_angle": 4.0}, {"max_shift": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            parse("se3").random(3, **bad)


@pytest.mark.gradients
@pytest.mark.parametrize("name", ["so3", pytest.param("se3", marks=pytest.mark.slow)])
def test_gradients_agree_with_finite_differences(name):
    group = parse(name)
    v = twists(group, torch.float64)[[0, 3, 6, 8, 20]].requires_grad_()
    assert gradcheck(group.exp, v)
    assert gradgradcheck(group.exp, v[[0, 4]])
    elements = group.exp(v.detach())[[0, 1, 2, 4]]
    step = (1e-3 * torch.randn(4, group.dim, generator=torch.Generator().manual_seed(1)).double()).requires_grad_()
    step.data[0] = 0
    assert gradcheck(lambda each: group.log(elements @ group.exp(each)), step)
    half = group.exp(v.detach())[3:4].requires_grad_()
    (gradient,) = torch.autograd.grad(group.log(half).square().sum(), half)
    assert torch.isfinite(gradient).all()
