"""
c8: eight rotations
===================

The rotations by multiples of 45 degrees. Those by 90 degrees permute pixels; the others need interpolation, so they can
only be exact up to the resolution of the image. The number above each copy says how much of the image changes when it
is rotated and rotated back.
"""

import math

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import inverse, parse
from unpose.images import warp

elements = parse("c8").elements.float()
seven = torch.from_numpy(drawings(60)[1]).permute(2, 0, 1)[None]  # (1, 3, 60, 60)
orbit = warp(seven, elements)
back = warp(orbit, inverse(elements))
change = (back - seven).flatten(1).norm(dim=1) / seven.norm()

# %%
# The orbit, each copy in the direction of its angle.
figure = plt.figure(figsize=(5.5, 3.85))
axis = figure.add_axes([0, 0, 1, 1])
axis.axis("off")
for index in range(8):
    angle = math.radians(45 * index + 90)
    x, y = 0.5 + 0.42 * math.cos(angle), 0.46 + 0.34 * math.sin(angle)
    inset = axis.inset_axes([x - 0.065, y - 0.09, 0.13, 0.18])
    inset.imshow(orbit[index].permute(1, 2, 0).clamp(0, 1))
    inset.axis("off")
    inset.set_title(f"{45 * index}°: {change[index]:.1%}", fontsize=9, pad=2)
axis.text(0.5, 0.46, "change of the image\nwhen it is rotated\nand rotated back", ha="center", va="center")
plt.show()
