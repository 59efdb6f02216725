"""The CUDA kernel of the pose search: interpreted, compiled and on a GPU it finds a pose of the highest score."""

import ast
import math
from pathlib import Path

import pytest
import torch

import unpose
from kit.kernels import Kernel, kernel_tests

# moving images, views, fixed images, coefficients of each frequency, angles; a program takes 128 fixed images and goes
# through the poses in blocks of 64
CASES = {
    "several blocks of poses": (3, 5, 7, (4, 3, 2, 1), 28),
    "several programs": (2, 1, 131, (3, 0, 2), 8),
    "one coefficient": (2, 3, 1, (1,), 4),
    "several banks": (3, 2, 5, (2, 2), 12),
}
LARGE = CASES | {"many": (301, 9, 1009, (7, 6, 6, 5, 5, 4, 3, 2), 72)}


def draw(case, device):
    """Draw views (n, V, C), fixed (m, C), the frequencies (C,) and the angles (A,)."""
    n, n_views, m, counts, n_angles = case
    generator, size = torch.Generator().manual_seed(5), sum(counts)
    views = torch.randn(n, n_views, size, generator=generator, dtype=torch.complex64) * 100
    fixed = torch.randn(m, size, generator=generator, dtype=torch.complex64)
    frequencies = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    angles = torch.arange(n_angles) * (2 * math.pi / n_angles)
    return [tensor.to(device) for tensor in (views, fixed, frequencies, angles)]


def all_scores(views, fixed, frequencies, angles):
    """Score every pose in float64, relative to the norms of both images: (n, m, V * A), in float32."""
    phases = torch.exp(-1j * angles.double()[:, None] * frequencies)  # (A, C)
    rows = (views.cdouble()[:, :, None] * phases).flatten(1, 2)  # (n, V * A, C)
    scores = torch.stack([(row @ fixed.cdouble().conj().T).real.float().T for row in rows])
    return scores / norms(views, fixed)[..., None]


def norms(views, fixed):
    return views.abs().square().sum(-1).sqrt().amax(-1)[:, None] * fixed.abs().square().sum(-1).sqrt()


def search(case, device):
    """Relative scores (n, m) that the kernel finds, and those of the poses that it finds."""
    from unpose.align.kernels import search_cuda

    views, fixed, *others = draw(case, device)
    bank = {"bank_bytes": 1} if case == CASES["several banks"] else {}
    score, pose = search_cuda.best_poses(views, fixed, *others, **bank)
    at_pose = all_scores(views, fixed, *others).gather(2, pose.long()[..., None])[..., 0]
    return score / norms(views, fixed), at_pose


def highest(case, device):
    best = all_scores(*draw(case, device)).amax(2)
    return best, best


def tied(case, device):
    """The poses of views that are zero."""
    from unpose.align.kernels import search_cuda

    views, *others = draw(case, device)
    return (search_cuda.best_poses(torch.zeros_like(views), *others)[1],)


def smallest(case, device):
    return (torch.zeros(case[0], case[2], device=device),)


KERNELS = {
    # Half precision rounds. Where it selects another pose, the score of that pose is equally good.
    "search": Kernel(search, highest, CASES, 2e-3, LARGE),
    "ties": Kernel(tied, smallest, CASES, 0.0, compiled={"several blocks of poses": ["_kernel on tensor cores"]}),
}

test_interpreted, test_compiled, test_on_a_gpu = kernel_tests(__file__, KERNELS)


def launches(node, on_device=False):
    """Calls ``kernel[grid](...)`` below a node, and whether they stand under ``with torch.cuda.device_of(...)``."""
    if isinstance(node, ast.With):
        on_device |= any("torch.cuda.device_of" in ast.unparse(item) for item in node.items)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        yield node.lineno, on_device
    for child in ast.iter_child_nodes(node):
        yield from launches(child, on_device)


@pytest.mark.parametrize("room", ["align", "images"])
def test_kernels_are_launched_on_the_gpu_that_holds_the_tensors(room):
    files = (Path(unpose.__file__).parent / room / "kernels").glob("*_cuda.py")
    found = [launch for path in files for launch in launches(ast.parse(path.read_text("utf-8")))]
    assert found
    assert all(on_device for _, on_device in found), found
