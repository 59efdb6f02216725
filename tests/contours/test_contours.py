"""Contours: traced from masks, compared over the orbit, and networks that commute with rotation and start."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.networks import contrasted
from kit.tensors import normal, relative_error, uniform
from unpose.contours import ComplexCircularLayer, complex_circular_net, contour, outline_distances, resample


def curve(n=53, seed=0):
    """A smooth closed curve without symmetry."""
    rng = np.random.default_rng(seed)
    k = np.arange(-4, 5)
    coefficients = (rng.normal(size=9) + 1j * rng.normal(size=9)) * 0.3 / (1 + np.abs(k))
    coefficients[5] += 3
    return np.exp(2j * np.pi * np.outer(np.arange(n) / n, k)) @ coefficients


@pytest.mark.equivariance
@settings(max_examples=5, deadline=None)
@given(n=st.integers(5, 41), shift=st.integers(-50, 50), angle=st.floats(0, 7), double=st.booleans())
def test_networks_commute_with_rotation_and_start(n, shift, angle, double):
    kind = torch.complex128 if double else torch.complex64
    tolerance = 1e-12 if double else 5e-6  # three layers of float32 sums, of up to 41 points
    torch.manual_seed(3)
    net = contrasted(complex_circular_net(4, width=5, depth=3), gain=1)
    net = net.double() if double else net
    z = torch.from_numpy(np.stack([curve(n, 1), curve(n, 2)])).to(kind)
    turn = torch.tensor(complex(math.cos(angle), math.sin(angle)), dtype=kind)
    moved = (turn * z).roll(shift, 1)
    for found, expected in zip(net.layer_outputs(moved), net.layer_outputs(z), strict=True):
        assert relative_error(found, (turn * expected).roll(shift, 2)) < tolerance
    assert relative_error(net(moved), net(z)) < tolerance
    assert relative_error(net(moved.conj().resolve_conj().flip(1)), net(z)) < tolerance
    bent = z.real * 1.3 + 1j * z.imag
    assert relative_error(net(bent.to(kind)), net(z)) > 1e-4  # the control


def test_mirrors_are_told_apart_if_wanted():
    torch.manual_seed(0)
    net, z = complex_circular_net(4, mirrors=False).double().eval(), torch.from_numpy(curve())[None]
    assert relative_error(net(z.conj().resolve_conj().flip(1)), net(z)) > 1e-3
    with pytest.raises(ValueError, match="complex"):
        net(uniform(2, 9))
    with pytest.raises(ValueError, match="odd"):
        ComplexCircularLayer(1, 2, size=4)


@pytest.mark.gradients
def test_gradients():
    layer = ComplexCircularLayer(1, 2, size=3).double()
    assert torch.autograd.gradcheck(layer, normal(1, 1, 7, dtype=torch.complex128).requires_grad_())
    net = complex_circular_net(2, width=3, depth=2)
    net(torch.zeros(1, 8, dtype=torch.complex64)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


@pytest.mark.laws
def test_the_distance_is_the_least_over_the_orbit():
    a, b = curve(24, 1), curve(24, 2)

    def normal(z):
        spectrum = np.fft.fft(z) * np.abs(np.fft.fftfreq(24, 1 / 24)) ** 0.5
        return np.fft.ifft(spectrum / np.linalg.norm(spectrum)) * math.sqrt(24)

    def mirror(z):  # the reversed conjugate, from the same start
        return np.roll(z.conj()[::-1], 1)

    match = outline_distances(a[None], b[None])
    angles = np.linspace(0, 2 * np.pi, 721)[:, None]
    least = min(
        np.linalg.norm(normal(a) - np.exp(1j * angles) * np.roll(other, s), axis=1).min()
        for s in range(24) for other in (normal(b), normal(mirror(b)))
    )  # fmt: skip
    assert abs(match.distances[0, 0] - least) < 1e-4
    other = normal(mirror(b)) if match.mirrored[0, 0] else normal(b)
    there = np.exp(1j * match.angles[0, 0]) * np.roll(other, -match.starts[0, 0])
    assert abs(np.linalg.norm(normal(a) - there) - match.distances[0, 0]) < 1e-9
    moved = 3j * np.roll(mirror(a), 7) + 5 - 2j
    assert outline_distances(a[None], moved[None]).distances[0, 0] < 1e-6
    assert outline_distances(a[None], moved[None], mirrors=False).distances[0, 0] > 0.05
    many = np.stack([curve(24, seed) for seed in range(5)])
    both = outline_distances(many).distances
    np.testing.assert_allclose(both, both.T, atol=1e-6)
    assert np.diag(both).max() < 1e-6


def test_a_mask_has_its_outline():
    y, x = np.mgrid[-30:31, -40:41]
    ellipse = (x / 25) ** 2 + (y / 12) ** 2 <= 1
    ellipse[30, 40] = False  # a hole is not part of the outline
    ellipse[0, 0] = True  # nor is a speck
    z = contour(ellipse, 200)
    assert len(z) == 200
    assert np.abs((z.real / 25) ** 2 + (z.imag / 12) ** 2 - 1).max() < 0.15
    steps = np.abs(np.diff(z))
    assert np.ptp(steps) < 0.05 * steps.mean()
    assert (z.conj() * np.roll(z, -1)).imag.sum() > 0  # counter-clockwise
    # A quarter turn of the image, counter-clockwise, multiplies by i up to the start.
    turned = contour(np.rot90(ellipse), 200)
    assert outline_distances(z[None], turned[None], mirrors=False).distances[0, 0] < 0.02
    image = np.zeros((9, 9), np.float32)
    image[4, 4] = 0.7
    assert np.abs(contour(image, 16, smooth=0)).max() < 1
    full = contour(np.ones((5, 7), np.uint8), 64, smooth=0)  # touches the border
    assert np.isclose(full.real.max(), 3.5)


def test_diagonal_contacts_do_not_trap_the_trace():
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask = rng.random((11, 13)) < 0.55
        assert np.isfinite(contour(mask, 32)).all()


def test_bad_contours():
    square = np.array([[0.0, 0], [0, 4], [4, 4], [4, 0]])
    for bad, message in [
        (square[:2], "three points"), (square * np.nan, "NaN"), (square * 0, "coincide"), (np.ones((4, 3)), "complex"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            resample(bad)
    half_circle = np.exp(1j * np.linspace(0, np.pi, 30))
    with pytest.raises(ValueError, match="open"):
        resample(half_circle)
    t = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    eight = np.sin(t) + 1j * np.sin(2 * t)  # crosses itself
    assert np.isfinite(resample(eight)).all()
    assert outline_distances(resample(eight)[None], resample(1j * eight)[None]).distances[0, 0] < 1e-3
    with pytest.raises(ValueError, match="empty"):
        contour(np.zeros((5, 5)))
    with pytest.raises(ValueError, match="single point"):
        outline_distances(np.ones((1, 9), complex))
    with pytest.raises(ValueError, match="as many points"):
        outline_distances(curve(9)[None], curve(11)[None])
