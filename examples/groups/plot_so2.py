"""
so2: all rotations about the centre
===================================

The orbit of an image under all rotations is a closed curve in the space of images. The distance from a fixed image
along this curve has many local minima, which is why a pose is searched over the whole circle before it is refined.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from unpose.align import align
from unpose.data import drawings
from unpose.groups import parse
from unpose.images import warp

so2 = parse("so2")
crab = torch.from_numpy(drawings(48)[0].mean(2))
hidden = so2.exp(torch.tensor([np.radians(140.0)])).float()
turned = warp(crab, hidden)

# %%
# The distance at 360 angles, and the angle that the search finds.
angles = torch.arange(-180.0, 180.0)
poses = so2.exp(torch.deg2rad(angles)[:, None]).float()  # (360, 3, 3)
distances = (warp(crab, poses) - turned).flatten(1).norm(dim=1)
found = align(crab[None].numpy(), turned[None].numpy(), group="so2")
angle = float(torch.rad2deg(so2.log(torch.from_numpy(found.poses[0]))))
print(f"hidden rotation 140 degrees, found {angle:.2f} degrees")

figure, axis = plt.subplots(figsize=(5.5, 3.85), layout="constrained")
is_minimum = (distances < distances.roll(1)) & (distances < distances.roll(-1))
axis.plot(angles, distances, color="C0")
axis.plot(angles[is_minimum], distances[is_minimum], "o", color="C1", label=f"{int(is_minimum.sum())} local minima")
axis.axvline(angle, color="C2", linestyle="--", label=f"found: {angle:.0f}°")
axis.set(xlabel="rotation in degrees", ylabel="distance", xticks=range(-180, 181, 90))
axis.legend(loc="lower left")
for image, place, name in ((crab, 0.1, "image"), (turned, 0.3, "target")):
    inset = axis.inset_axes([place, 0.62, 0.19, 0.26])
    inset.imshow(image, cmap="gray")
    inset.set_title(name, fontsize=8, pad=2)
    inset.axis("off")
axis.set_ylim(0, 1.9 * float(distances.max()))
plt.show()
