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
for number, (sigma, name) in enumerate(((0.0, "as drawn"), (0.7, "blurred by 0.7 px"), (1.4, "blurred by 1.4 px"))):
    image = smooth(seven, sigma) if sigma else seven
    back = warp(warp(image, poses), inverse(poses))
    axis.plot(angles, 100 * (back - image).flatten(1).norm(dim=1) / image.norm())
    inset = axis.inset_axes([0.08 + 0.32 * number, 0.66, 0.2, 0.24])
    inset.imshow(image[0, 0], cmap="gray")
    inset.axis("off")
    inset.set_title(name, color=f"C{number}", fontsize=9, pad=3)
axis.set(xlabel="rotation in degrees", ylabel="lost, in per cent", xticks=range(0, 181, 45))
axis.set_ylim(0, 1.8 * axis.get_ylim()[1])
plt.show()
