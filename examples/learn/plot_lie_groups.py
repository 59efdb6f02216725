"""
Kernels and attention on a continuous group
===========================================

Finite groups hold a few rotations. Layers on a continuous group sample its linear parts by the Haar measure, here of
the affine group: a kernel is a function of relative coordinates and is evaluated in the frame of every sample, without
interpolation. More samples make the answer depend less on the pose.
"""

import matplotlib.pyplot as plt
import torch

from unpose.groups import haar_samples, parse, transform, translation
from unpose.images import pixel_grid
from unpose.nn import LieConv2d, LieSelfAttention

torch.manual_seed(1)
layer = LieConv2d("affine", 1, 1, radius=3, lifting=True)
samples = haar_samples("affine", 12)
with torch.no_grad():
    thirds = pixel_grid((33, 33)).flatten(0, 1) / 3  # of a pixel
    kernels = layer.kernels(samples, thirds)[:, 0, 0].unflatten(1, (33, 33))

# %%
# A cloud of points is lifted: every point gets one element for each sample. Attention sees two elements only as their
# relative element, so it does not change if all elements are moved by the same map.
attention = LieSelfAttention("se2", 8).double()
points = 3 * torch.randn(9, 2, dtype=torch.float64)
content = torch.randn(9, 8, dtype=torch.float64)
turn = parse("se2").exp(torch.tensor([4.0, -2.0, 0.7], dtype=torch.float64))


def answer(at: torch.Tensor, n: int, offset: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens of n sampled rotations at each point."""
    lifted = translation(at)[:, None] @ haar_samples("se2", n, offset=offset, dtype=torch.float64)
    tokens = content[:, None].expand(-1, n, -1).flatten(0, 1)
    return attention(tokens[None], lifted.flatten(0, 1)).mean(1)


counts, errors = [1, 2, 3, 4, 6, 8, 12], []
with torch.no_grad():
    for n in counts:
        pairs = [(answer(transform(turn, points), n, o), answer(points, n, o)) for o in torch.rand(20, 4)]
        errors.append(torch.stack([(moved - still).norm() / still.norm() for moved, still in pairs]).mean().item())
print({n: f"{error:.0e}" for n, error in zip(counts, errors, strict=True)})

# %%
figure = plt.figure(figsize=(7.5, 3.2), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.4, 1])
for axis, kernel in zip(left.subplots(3, 4).flat, kernels, strict=True):
    axis.imshow(kernel, cmap="RdBu", vmin=-kernel.abs().max(), vmax=kernel.abs().max())
    axis.set(xticks=[], yticks=[])
left.suptitle("one kernel at 12 samples of the affine group", fontsize=10)
axis = right.subplots()
axis.semilogy(counts, errors, "o-")
axis.set(xlabel="sampled rotations", ylabel="change under a rigid motion")
plt.show()
