"""The audit on point clouds, contours and the sphere: right layers hold, wrong ones are found."""

import numpy as np
import pytest
import torch

from kit.tensors import normal, uniform
from unpose.audit import assert_equivariant, equivariance_error
from unpose.contours import complex_circular_net
from unpose.points import DeepSet, EGNNLayer, egnn
from unpose.sphere import SphereAttention, directions, sphere_mean

pytestmark = pytest.mark.equivariance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points(dtype):
    torch.manual_seed(0)
    net = egnn(3, width=8, neighbours=4).to(dtype)
    for group, d in (("e3", 3), ("se2+mirror", 2), ("d4", 2)):
        report = equivariance_error(net, normal(4, 9, d, dtype=dtype), group, input="points", n_elements=4)
        assert report.holds(), str(report)
        assert report.control_error > 10 * report.tolerance
    layer, cloud = EGNNLayer(2).to(dtype), normal(4, 9, 3, dtype=dtype)

    def moved(points):
        mask = torch.ones(points.shape[:2], dtype=torch.bool)
        return layer(torch.ones(*points.shape[:2], 2, dtype=points.dtype), points, mask)[1]

    assert equivariance_error(moved, cloud, "e3", "points", input="points", n_elements=4).holds()
    arrow = equivariance_error(
        lambda points: points[:, :3].mean(1) - points.mean(1), cloud, "so3", "vectors", input="points"
    )
    assert not arrow.holds()  # it depends on the order of the points


def test_a_plain_network_on_points_is_found():
    torch.manual_seed(0)
    assert not equivariance_error(DeepSet(3, 4), normal(4, 9, 3), "so3", input="points").holds()
    assert_equivariant(egnn(2, width=8), "e3", normal(4, 9, 3), input="points")
    with pytest.raises(AssertionError, match="not equivariant to so3"):
        assert_equivariant(DeepSet(3, 4), "so3", normal(4, 9, 3), input="points")


def test_contours():
    torch.manual_seed(0)
    z = normal(3, 21, dtype=torch.complex128)
    net = complex_circular_net(3, width=4, depth=2).double()
    for group in ("so2+mirror", "d4"):
        report = equivariance_error(net, z, group, input="contour", n_elements=4)
        assert report.holds(), str(report)
        assert report.control_error > 1e-4
    assert equivariance_error(lambda x: net.layer_outputs(x)[1], z, "so2", "contour", input="contour").holds()
    one_way = complex_circular_net(3, width=4, depth=2, mirrors=False).double()
    assert not equivariance_error(one_way, z, "so2+mirror", input="contour").holds()
    assert not equivariance_error(lambda x: x.real, z, "so2", input="contour").holds()


def smooth_on_the_sphere():
    axes = normal(2, 2, 3, dtype=torch.float64)
    return torch.einsum("hwx,ncx->nchw", directions(12, 24, torch.float64), axes).exp()


def test_sphere():
    torch.manual_seed(0)
    layer = SphereAttention(2, heads=1, radius=0.9).double()
    smooth = smooth_on_the_sphere()
    report = equivariance_error(layer, smooth, "so3", "sphere", input="sphere", n_elements=4)
    assert report.holds()  # longitudes are exact
    assert report.exact.sum() == 2  # the identity and one longitude
    assert (report.errors[~report.exact] < 3 * report.floors[~report.exact] + 0.05).all()
    assert report.control_error > 1e-2
    assert equivariance_error(lambda x: sphere_mean(x), smooth, "so3", input="sphere").errors.max() < 0.05


def test_what_interpolation_does_not_explain_fails_and_actions_and_calls_count():
    smooth = smooth_on_the_sphere()
    assert_equivariant(sphere_mean, "so3", smooth, input="sphere")
    with pytest.raises(AssertionError, match="not equivariant to so3"):  # rows near the poles count too much
        assert_equivariant(lambda x: x.mean((2, 3)), "so3", smooth, input="sphere")
    calls = []
    report = equivariance_error(lambda x: calls.append(1) or x.mean((2, 3)), smooth, "so3", input="sphere")
    assert report.n_calls == len(calls)
    centre, cloud = (lambda points: points.mean(1)), normal(4, 9, 3)
    assert_equivariant(centre, "so3", cloud, input="points", actions={"": "vectors"})
    with pytest.raises(ValueError, match="one output"):
        assert_equivariant(centre, "so3", cloud, input="points", actions={"a": "vectors"})


def test_bad_calls():
    net, cloud = egnn(2, width=4), normal(4, 9, 3)
    for options, message in [
        ({"group": "se2"}, "as many dimensions"), ({"output": "image"}, "must be one of"),
        ({"inputs": uniform(2, 3)}, r"\(n, k, 2\)"), ({"inputs": cloud[:1]}, "two different"),
        ({"inputs": cloud * np.nan}, "NaN"),
    ]:  # fmt: skip
        call = {"inputs": cloud, "group": "so3", "output": "invariant", **options}
        with pytest.raises(ValueError, match=message):
            equivariance_error(net, call["inputs"], call["group"], call["output"], input="points")
    with pytest.raises(ValueError, match="under so3"):
        equivariance_error(net, uniform(2, 1, 8, 16), "c4", input="sphere")
    with pytest.raises(ValueError, match="give a tensor"):
        assert_equivariant(net, "so3", input="points")
