"""
translation: shifts
===================

Shifts by whole pixels only move pixels; shifts by parts of a pixel interpolate with cubic convolution. An image is zero
outside its frame, so what leaves the frame is lost.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import parse
from unpose.images import warp

shifts = parse("translation")
crab = torch.from_numpy(drawings(60)[0]).permute(2, 0, 1)[None]
steps = [(x, y) for y in (-14.0, 0.0, 14.0) for x in (-22.5, 0.0, 22.5)]
moved = warp(crab, shifts.exp(torch.tensor(steps)))  # (9, 3, 60, 60)

# %%
# Coordinates are pixels from the centre, x to the right and y down.
figure, axes = plt.subplots(3, 3, figsize=(5.5, 5.0), layout="constrained")
for axis, image, (x, y) in zip(axes.flat, moved, steps, strict=True):
    axis.imshow(image.permute(1, 2, 0).clamp(0, 1))
    axis.set_title(f"x {x:+g}, y {y:+g}", fontsize=9)
    axis.axis("off")
plt.show()
