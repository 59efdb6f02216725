"""
se2: rotations and shifts
=========================

The rigid motions of the plane, and the default group of every search here. The exponential of a velocity (a shift and
a rotation) moves a point along an arc: a pose is a 3x3 matrix, poses are multiplied, and pixels are resampled once.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import parse, translation
from unpose.images import warp

se2 = parse("se2")
crab = torch.from_numpy(drawings(44)[0]).permute(2, 0, 1)[None]
start = translation(torch.tensor([-64.0, 40.0]))
velocity = torch.tensor([0.0, -200.0, -torch.pi])  # shift in x and y in pixels, rotation in radians
times = torch.linspace(0, 1, 6)
poses = start @ se2.exp(times[:, None] * velocity)  # (6, 3, 3)

# %%
# The path of the centre, and the crab at six times.
canvas = warp(crab, poses, shape=(150, 200)).amax(0)  # (3, 150, 200)
path = start @ se2.exp(torch.linspace(0, 1, 100)[:, None] * velocity)
figure, axis = plt.subplots(figsize=(5.5, 3.85), layout="constrained")
axis.imshow(canvas.permute(1, 2, 0).clamp(0, 1), extent=(-100, 100, 75, -75), aspect="equal")
axis.plot(path[:, 0, 2], path[:, 1, 2], color="white", linestyle=":")
axis.set(xlabel="x in pixels", ylabel="y in pixels, down", title="one velocity, six times")
plt.show()
