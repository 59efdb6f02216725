"""
The floor of interpolation
==========================

Rotating an image and rotating it back loses something at every angle but the quarter turns. No measurement of
invariance can be finer than this floor, which depends on how smooth the image is, so every audit here prints it.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import inverse, rotation
from unpose.images import smooth, warp

seven = torch.from_numpy(drawings(28)[1]).mean(2)[None, None]
angles = torch.arange(0, 181, 3)
poses = rotation(torch.deg2rad(angles.double())).float()

# %%
figure, axis = plt.subplots(figsize=(5.5, 3.85), layout="constrained")
for number, sigma in enumerate((0.0, 0.7, 1.4)):
    image = smooth(seven, sigma) if sigma else seven
    back = warp(warp(image, poses), inverse(poses))
    loss = (back - image).flatten(1).norm(dim=1) / image.norm()
    axis.plot(angles, 100 * loss, label=f"blurred by {sigma} pixels" if sigma else "as drawn")
    inset = axis.inset_axes([0.15 + 0.22 * number, 0.72, 0.17, 0.24])
    inset.imshow(image[0, 0], cmap="gray")
    inset.axis("off")
    inset.patch.set_edgecolor(f"C{number}")
axis.set(xlabel="rotation in degrees", ylabel="lost, in per cent", xticks=range(0, 181, 45))
axis.set_ylim(0, 1.7 * axis.get_ylim()[1])
axis.legend(loc="center right", fontsize=8)
plt.show()
