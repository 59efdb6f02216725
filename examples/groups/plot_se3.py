"""
se3: rigid motions of space
===========================

A rotation and a shift at a constant rate make a screw. The exponential map is in closed form and exact at zero, and the
logarithm finds the screw that leads from one pose to another, so that a motion can be cut into equal steps.
"""

import matplotlib.pyplot as plt
import torch

from unpose.groups import inverse, parse, transform

se3 = parse("se3")
first = se3.identity(torch.float64)
last = se3.exp(torch.tensor([-1.5, 2.5, 3.0, 0.4, -0.3, 2.6], dtype=torch.float64))
screw = se3.log(last @ inverse(first))  # (6,): shift, then rotation vector
steps = se3.exp(torch.linspace(0, 1, 9, dtype=torch.float64)[:, None] * screw) @ first

# %%
# An L-shaped object on its way: the first pose is blue, the last is red.
outline = torch.tensor([[0, 0, 0], [0, 0, 1.6], [0, 0, 0], [0.8, 0, 0], [0, 0, 0], [0, 0.8, 0]], dtype=torch.float64)
figure = plt.figure(figsize=(5.5, 3.85), layout="constrained")
axis = figure.add_subplot(projection="3d")
colours = plt.colormaps["coolwarm"](torch.linspace(0, 1, len(steps)).numpy())
for pose, colour in zip(steps, colours, strict=True):
    axis.plot(*transform(pose, outline).T, color=colour, linewidth=2.5)
path = transform(se3.exp(torch.linspace(0, 1, 100, dtype=torch.float64)[:, None] * screw), outline[1:2])[:, 0]
axis.plot(*path.T, color="grey", linestyle=":")
axis.set(xticklabels=[], yticklabels=[], zticklabels=[])
axis.set_title("one screw, nine poses")
plt.show()
