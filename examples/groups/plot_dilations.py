"""
dilations: a ladder of sizes
============================

``dilations(5, 1.5)`` holds five scales, each 1.5 times the one before. It is no group, because the largest scale has
no larger one to go to: its product table has holes, and networks that use it say so.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import NO_ELEMENT, parse
from unpose.images import warp

ladder = parse("dilations(5, 1.5)")
print("is a group:", ladder.is_group)
crab = torch.from_numpy(drawings(24)[0]).permute(2, 0, 1)[None]
sizes = warp(crab, ladder.elements.float(), shape=(110, 110))

# %%
figure = plt.figure(figsize=(5.5, 3.85), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.6))
axes = top.subplots(1, 5)
for axis, image, element in zip(axes, sizes, ladder.elements, strict=True):
    axis.imshow(image.permute(1, 2, 0).clamp(0, 1))
    axis.set_title(f"x {element[0, 0]:.3g}")
    axis.axis("off")
table = bottom.subplots()
table.imshow(ladder.product.where(ladder.product != NO_ELEMENT, torch.nan), cmap="viridis")
table.set(title="products; white: larger than the largest", xticks=range(5), yticks=range(5))
plt.show()
