"""
c4: quarter turns
=================

The four rotations by 90 degrees. On a square image they only permute pixels, so nothing is interpolated and four
quarter turns give back every bit. ``p4`` is another name for this group.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import parse
from unpose.images import warp

c4 = parse("c4")
crab = torch.from_numpy(drawings(60)[0]).permute(2, 0, 1)[None]  # (1, 3, 60, 60)
orbit = warp(crab, c4.elements.float())  # (4, 3, 60, 60): one image, transformed by every element

# %%
# Four quarter turns are the identity, exactly.
turned = crab
for _ in range(4):
    turned = warp(turned, c4.elements[1].float())
print("the same bits after four quarter turns:", torch.equal(turned, crab))

# %%
# ``product[a, b]`` is the index of the element that applies b first and then a.
figure = plt.figure(figsize=(5.5, 3.85), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.3, 1))
for index, axis in enumerate(left.subplots(2, 2).flat):
    axis.imshow(orbit[index].permute(1, 2, 0).clamp(0, 1))
    axis.set_title(f"{90 * index}°")
    axis.axis("off")
table = right.subplots()
table.imshow(c4.product, cmap="viridis")
for a in range(4):
    for b in range(4):
        index = int(c4.product[a, b])
        table.text(b, a, index, ha="center", va="center", color="white" if index < 3 else "black")
table.set(title="product table", xticks=range(4), yticks=range(4))
plt.show()
