"""
affine: stretch and shear too
=============================

An affine map has six coordinates: shift in x and y, rotation, log scale, stretch and shear. Each row of the picture
goes along one of the last four, from negative to positive.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import parse
from unpose.images import warp

affine = parse("affine")
crab = torch.from_numpy(drawings(60)[0]).permute(2, 0, 1)[None]
amounts = torch.tensor([-0.5, -0.25, 0.0, 0.25, 0.5])
names = [coordinate.name for coordinate in affine.coordinates]
print(names)

# %%
figure, axes = plt.subplots(4, 5, figsize=(5.5, 4.6), layout="constrained")
for row, name in zip(axes, names[2:], strict=True):
    velocity = torch.zeros(5, affine.dim)
    velocity[:, names.index(name)] = amounts
    for axis, image, amount in zip(row, warp(crab, affine.exp(velocity)), amounts, strict=True):
        axis.imshow(image.permute(1, 2, 0).clamp(0, 1))
        axis.set(xticks=[], yticks=[])
        if name == names[2]:
            axis.set_title(f"{amount:+g}")
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
