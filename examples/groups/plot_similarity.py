"""
similarity: rotations, shifts and scales
========================================

A constant rate of rotation and of scale moves points along a spiral. In coordinates of the Lie algebra the scale is a
logarithm, so twice as large and half as large are equally far from the identity.
"""

import math

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import parse, transform
from unpose.images import warp

similarity = parse("similarity")
creature = torch.from_numpy(drawings(76)[2]).permute(2, 0, 1)[None]
velocity = torch.tensor([0.0, 0.0, 4 * math.pi / 3, -math.log(4)])  # x, y, rotation, log scale: shrink to a quarter
times = torch.linspace(0, 1, 5)
poses = similarity.exp(times[:, None] * velocity)

# %%
# Each copy stands where the same motion brings the point (58, 0).
centres = transform(poses, torch.tensor([[58.0, 0.0]]))[:, 0]  # (5, 2)
poses[:, :2, 2] = centres
canvas = warp(creature, poses, shape=(150, 214)).amax(0)
path = transform(similarity.exp(torch.linspace(0, 1, 200)[:, None] * velocity), torch.tensor([[58.0, 0.0]]))[:, 0]
figure, axis = plt.subplots(figsize=(5.5, 3.85), layout="constrained")
axis.imshow(canvas.permute(1, 2, 0).clamp(0, 1), extent=(-107, 107, 75, -75))
axis.plot(path[:, 0], path[:, 1], color="white", linestyle=":")
axis.axis("off")
axis.set_title("turn at a constant rate and shrink at a constant rate")
plt.show()
