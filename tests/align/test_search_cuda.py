"""The CUDA kernel of the pose search: equal to the plain sum in Triton's interpreter, and it compiles."""

import ast
import math
from pathlib import Path

import pytest
import torch

import unpose
from kit.kernels import answer_job, compile_only, needs_interpreter, needs_triton, run_job

# moving images, views, fixed images, coefficients of each frequency, angles
CASES = {
    "several blocks of poses": (3, 5, 7, (4, 3, 2, 1), 28),
    "several programs": (2, 1, 19, (3, 0, 2), 8),
    "one coefficient": (2, 3, 1, (1,), 4),
    "several banks": (3, 2, 5, (2, 2), 12),
}


def draw(case):
    """Draw views (n, V, C), fixed (m, C), the frequencies (C,) and the angles (A,)."""
    n, n_views, m, counts, n_angles = CASES[case]
    generator, size = torch.Generator().manual_seed(5), sum(counts)
    views = torch.randn(n, n_views, size, generator=generator, dtype=torch.complex64) * 100
    fixed = torch.randn(m, size, generator=generator, dtype=torch.complex64)
    frequencies = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return views, fixed, frequencies, torch.arange(n_angles) * (2 * math.pi / n_angles)


def all_scores(views, fixed, frequencies, angles):
    """Compute the score of every pose in float64: (n, m, V * A)."""
    phases = torch.exp(-1j * angles.double()[:, None] * frequencies)  # (A, C)
    return torch.einsum("nvc,ac,mc->nmva", views.cdouble(), phases, fixed.cdouble().conj()).real.flatten(2)


def launches(node, on_device=False):
    """Calls ``kernel[grid](...)`` below a node, and whether they stand under ``with torch.cuda.device_of(...)``."""
    if isinstance(node, ast.With):
        on_device |= any("torch.cuda.device_of" in ast.unparse(item) for item in node.items)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        yield node.lineno, on_device
    for child in ast.iter_child_nodes(node):
        yield from launches(child, on_device)


def test_kernels_are_launched_on_the_gpu_that_holds_the_tensors():
    folders = [Path(unpose.__file__).parent / room / "kernels" for room in ("align", "images")]
    kernels = {str(path): ast.parse(path.read_text("utf-8")) for folder in folders for path in folder.glob("*_cuda.py")}
    found = {(name, *each) for name, tree in kernels.items() for each in launches(tree)}
    assert len(found) >= 2
    assert [each for each in found if not each[2]] == []


@pytest.fixture(scope="module")
def interpreted():
    return run_job(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("case", CASES)
def test_the_interpreted_kernel_equals_the_plain_sum(case, interpreted):
    score, pose = torch.tensor(interpreted[case][0]), torch.tensor(interpreted[case][1])
    views, fixed, frequencies, angles = draw(case)
    scores = all_scores(views, fixed, frequencies, angles)
    best = scores.amax(2)
    size = views.abs().square().sum(-1).sqrt().amax(-1)[:, None] * fixed.abs().square().sum(-1).sqrt()
    assert ((score - best).abs() / size).max() < 2e-3  # the rounding of half precision
    # Where rounding selects another pose, its score is equally good.
    at_pose = scores.gather(2, pose[..., None])[..., 0]
    assert ((best - at_pose) / size).max() < 2e-3


@needs_interpreter
def test_ties_go_to_the_smallest_pose(interpreted):
    assert not torch.tensor(interpreted["zeros"]).any()


@pytest.mark.slow
@needs_triton
def test_the_kernel_compiles_for_a_gpu_that_is_not_present(tmp_path):
    assert run_job(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == ["_kernel on tensor cores"]


def interpret():
    """Return scores and poses of every case, with small blocks, and the poses of views that are zero."""
    from unpose.align.kernels import search_cuda

    search_cuda._FIXED, search_cuda._POSES = 16, 16
    found = {}
    for case in CASES:
        search_cuda._BANK_BYTES = 1 if case == "several banks" else 2**20
        score, pose = search_cuda.best_poses(*draw(case))
        found[case] = score.tolist(), pose.tolist()
    views, *others = draw("one coefficient")
    return found | {"zeros": search_cuda.best_poses(torch.zeros_like(views), *others)[1].tolist()}


def compile_kernel():
    """Compile the kernel for compute capability 9.0."""
    from unpose.align.kernels import search_cuda

    names = compile_only()
    search_cuda.best_poses(*draw("several blocks of poses"))
    return names


if __name__ == "__main__":
    answer_job(interpret=interpret, compile=compile_kernel)
