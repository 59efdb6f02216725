"""
so3: rotations of space
=======================

Poses of space are 4x4 matrices. Random elements of ``so3`` are uniform over all rotations: the images of one point
cover the sphere evenly. Rotation vectors whose direction is uniform and whose angle is uniform would crowd around the
start.
"""

import matplotlib.pyplot as plt
import torch

from unpose.groups import parse, transform

so3 = parse("so3")
generator = torch.Generator().manual_seed(0)
point = torch.tensor([[0.0, 0.0, 1.0]])
uniform = transform(so3.random(1500, generator=generator), point)[:, 0]  # (1500, 3)

# %%
# The naive choice: a random axis and a uniform angle.
axes_of_rotation = torch.nn.functional.normalize(torch.randn(1500, 3, generator=generator), dim=1)
angles = torch.pi * torch.rand(1500, 1, generator=generator)
naive = transform(so3.exp(axes_of_rotation * angles), point)[:, 0]

figure, axes = plt.subplots(1, 2, figsize=(5.5, 3.0), subplot_kw={"projection": "3d"}, layout="constrained")
for axis, points, name in zip(axes, (uniform, naive), ("so3.random: uniform", "uniform angle: crowded"), strict=True):
    axis.scatter(*points.T, s=2, c=points[:, 2], cmap="viridis")
    axis.scatter(0, 0, 1, color="red", s=25)
    axis.set_title(name, fontsize=10)
    axis.set_box_aspect((1, 1, 1))
    axis.axis("off")
plt.show()
