"""
perspective: a plane seen by a camera
=====================================

Homographies have eight coordinates; the last two tilt the plane. Parallel lines need not stay parallel. A pose is the
same 3x3 matrix as in the other groups, and its inverse brings the picture back.
"""

import matplotlib.pyplot as plt
import torch

from unpose.groups import inverse, parse
from unpose.images import warp

perspective = parse("perspective")
tilt = perspective.exp(torch.tensor([0.0, 0.0, 0.15, -0.2, 0.0, 0.0, 0.002, -0.003]))

# %%
# A chessboard, photographed at an angle, and seen from above again.
rows, columns = torch.meshgrid(torch.arange(160), torch.arange(160), indexing="ij")
board = (((rows // 20) + (columns // 20)) % 2 * 0.6 + 0.4).float()
canvas = warp(board, torch.eye(3), shape=(220, 220))
photographed = warp(canvas, tilt)
restored = warp(photographed, inverse(tilt))

figure, axes = plt.subplots(1, 3, figsize=(5.5, 2.4), layout="constrained")
for axis, image, name in zip(axes, (canvas, photographed, restored), ("flat", "tilted", "tilted back"), strict=True):
    axis.imshow(image, cmap="gray", vmin=0, vmax=1)
    axis.set_title(name)
    axis.axis("off")
plt.show()
