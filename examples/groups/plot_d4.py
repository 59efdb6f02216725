"""
d4: quarter turns and mirrors
=============================

The eight symmetries of a square: four rotations, and each of them after the left-right mirror. They do not commute:
mirroring and then turning is not the same as turning and then mirroring. ``p4m`` is another name for this group.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import parse
from unpose.images import warp

d4 = parse("d4")
creature = torch.from_numpy(drawings(60)[2]).permute(2, 0, 1)[None]
orbit = warp(creature, d4.elements.float())  # (8, 3, 60, 60)
print("d4 is abelian:", d4.is_abelian)

# %%
# Element 1 is a quarter turn and element 4 the mirror.
print("turn after mirror:", int(d4.product[1, 4]), " mirror after turn:", int(d4.product[4, 1]))

figure, axes = plt.subplots(2, 4, figsize=(5.5, 3.1), layout="constrained")
for index, axis in enumerate(axes.flat):
    axis.imshow(orbit[index].permute(1, 2, 0).clamp(0, 1))
    name = f"{90 * (index % 4)}°" + (", mirrored" if index >= 4 else "")
    axis.set_title(f"{index}: {name}", fontsize=9)
    axis.axis("off")
plt.show()
