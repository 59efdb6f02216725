"""The CUDA kernel of Keys sampling: equal to the plain implementation in Triton's interpreter, and it compiles."""

import pytest
import torch

from kit.kernels import answer_job, compile_only, needs_interpreter, needs_triton, run_job
from unpose.groups import parse
from unpose.images import quarter_turn, sample, sample_with_gradient, source_points

# images, sets of points, channels, (height, width), (height, width) of the result
CASES = {
    "an image each": (2, 2, 2, (7, 5), (3, 5)),
    "one image": (1, 2, 1, (6, 7), (3, 3)),
    "one set of points": (2, 1, 1, (5, 5), (3, 5)),
    "several programs": (1, 1, 1, (9, 8), (5, 7)),
}
DTYPES = ("float32", "float64")


def draw(case, dtype):
    """Draw images (n, c, h, w) and points (m, k, 2) of affine poses, some of them outside the image."""
    n_images, n_points, channels, shape, result = CASES[case]
    generator, dtype = torch.Generator().manual_seed(3), getattr(torch, dtype)
    images = torch.rand(n_images, channels, *shape, generator=generator, dtype=dtype)
    poses = parse("affine").random(n_points, max_shift=3.0, generator=generator, dtype=dtype)
    return images, source_points(poses, result).flatten(1, 2)


@pytest.fixture(scope="module")
def interpreted():
    return run_job(__file__, "interpret")


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_the_interpreted_kernel_equals_the_plain_implementation(case, dtype, interpreted):
    assert max(interpreted[case][dtype]) < (5e-6 if dtype == "float32" else 1e-14)


@needs_interpreter
def test_the_interpreted_kernel_turns_by_quarters_exactly(interpreted):
    assert interpreted["quarter turn"]


@pytest.mark.slow
@needs_triton
def test_the_kernel_compiles_for_a_gpu_that_is_not_present(tmp_path):
    assert run_job(__file__, "compile", TRITON_CACHE_DIR=str(tmp_path)) == ["_kernel"] * 2


def interpret():
    """Return the largest errors of values, with and without gradients, and of gradients; the exact case."""
    from unpose.images.kernels import keys_cuda

    keys_cuda._BLOCK = 16
    found = {}
    for case in CASES:
        found[case] = {}
        for dtype in DTYPES:
            images, points = draw(case, dtype)
            tracked = images.clone().requires_grad_()  # where gradients are needed, PyTorch operations compute
            wanted = (sample(tracked, points), *sample_with_gradient(tracked, points))
            results = (
                keys_cuda.sample(images, points, gradient=False)[0],
                *keys_cuda.sample(images, points, gradient=True),
            )
            found[case][dtype] = [float((a - b).detach().abs().max()) for a, b in zip(results, wanted, strict=True)]
    images = torch.rand(2, 1, 7, 6, generator=torch.Generator().manual_seed(1))
    points = source_points(parse("c4").elements[1:2].float(), (6, 7)).flatten(1, 2)
    turned = keys_cuda.sample(images, points, gradient=False)[0].view(2, 1, 6, 7)
    return found | {"quarter turn": torch.equal(turned, quarter_turn(images))}


def compile_kernel():
    """Compile the kernel for compute capability 9.0 with and without gradients."""
    from unpose.images.kernels import keys_cuda

    names = compile_only()
    for dtype in DTYPES:
        keys_cuda.sample(*draw("an image each", dtype), gradient=dtype == "float32")
    return names


if __name__ == "__main__":
    answer_job(interpret=interpret, compile=compile_kernel)
