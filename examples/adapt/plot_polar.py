"""
Rotations become shifts
=======================

In polar coordinates about the centre, a rotation is a shift along the angle, and in log-polar coordinates a change of
size is a shift along the radius. A model that ignores shifts then ignores rotations and sizes.
"""

import matplotlib.pyplot as plt
import torch

from unpose.adapt import polar
from unpose.data import drawings
from unpose.groups import rotation, scaling
from unpose.images import warp

crab = torch.from_numpy(drawings(80)[0]).permute(2, 0, 1)[None]
versions = {
    "image": crab,
    "turned by 90°": warp(crab, rotation(torch.tensor(torch.pi / 2))),
    "1.4 times as large": warp(crab, scaling(torch.tensor(1.4))),
}

# %%
figure, axes = plt.subplots(2, 3, figsize=(5.5, 3.85), layout="constrained")
for (top, bottom), (name, image) in zip(axes.T, versions.items(), strict=True):
    coordinates = polar(image, angles=128, radii=64, logarithmic=True)[0]  # (3, 128, 64)
    top.imshow(image[0].permute(1, 2, 0).clamp(0, 1))
    top.set_title(name, fontsize=10)
    top.axis("off")
    bottom.imshow(coordinates.permute(2, 1, 0).clamp(0, 1), origin="lower", aspect="auto", extent=(0, 360, 0, 1))
    bottom.set(xticks=[0, 180, 360], yticks=[], xlabel="angle")
axes[1, 0].set_ylabel("log of the radius")
plt.show()
