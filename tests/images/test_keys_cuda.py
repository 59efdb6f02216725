"""The CUDA kernel of Keys sampling: interpreted, compiled and on a GPU it equals plain operations."""

import torch

from kit.kernels import Kernel, kernel_tests
from unpose.groups import parse
from unpose.images import quarter_turn, sample, sample_with_gradient, source_points

# images, sets of points, channels, (height, width), (height, width) of the result
SHAPES = {
    "an image each": (2, 2, 2, (7, 5), (3, 5)),
    "one image": (1, 2, 1, (6, 7), (3, 3)),
    "one set of points": (2, 1, 1, (5, 5), (3, 5)),
    "several programs": (1, 1, 1, (9, 8), (17, 19)),  # 323 points; a program samples 256
}
LARGE = {"photographs": (7, 7, 3, (29, 31), (23, 27)), "many images": (70_001, 70_001, 1, (3, 2), (2, 3))}
DTYPES = ("float32", "float64")


def in_both_types(shapes):
    return {f"{name}, {dtype}": (*shape, dtype) for name, shape in shapes.items() for dtype in DTYPES}


def draw(case, device):
    """Draw images (n, c, h, w) and points (m, k, 2) of affine poses, some of them outside the image."""
    n_images, n_points, channels, shape, result, dtype = case
    generator, dtype = torch.Generator().manual_seed(3), getattr(torch, dtype)
    images = torch.rand(n_images, channels, *shape, generator=generator, dtype=dtype)
    poses = parse("affine").random(n_points, max_shift=3.0, generator=generator, dtype=dtype)
    return images.to(device), source_points(poses, result).flatten(1, 2).to(device)


def sampled(case, device):
    images, points = draw(case, device)
    return sample(images, points), *sample_with_gradient(images, points)


def plainly_sampled(case, device):
    images, points = draw(case, device)
    images.requires_grad_()  # where gradients are needed, PyTorch operations compute
    return sample(images, points), *sample_with_gradient(images, points)


def board(device):
    return torch.rand(2, 1, 7, 6, generator=torch.Generator().manual_seed(1)).to(device)


def turned_by_sampling(case, device):
    return (sample(board(device), source_points(parse("c4").elements[1:2].float(), (6, 7)).to(device)),)


KERNELS = {
    "sampling": Kernel(
        sampled,
        plainly_sampled,
        in_both_types(SHAPES),
        tolerance=lambda case: 5e-6 if case[-1] == "float32" else 1e-14,
        large=in_both_types(LARGE),
        compiled={f"an image each, {dtype}": ["_kernel"] * 2 for dtype in DTYPES},
    ),
    "quarter turn": Kernel(
        turned_by_sampling, lambda case, device: (quarter_turn(board(device)),), {"exact": None}, tolerance=0.0
    ),
}

test_interpreted, test_compiled, test_on_a_gpu = kernel_tests(__file__, KERNELS)
