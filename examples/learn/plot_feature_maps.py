"""
Feature maps turn with the image
================================

The first layer of a group network has one map for each rotation. When the image is turned, the maps are turned and
change places: nothing is lost, and the next layer can rely on it. Here a group convolution finds edges in four
directions.
"""

import matplotlib.pyplot as plt
import torch

from unpose.audit import equivariance_error
from unpose.data import drawings
from unpose.nn import GroupConv2d

layer = GroupConv2d("c4", 1, 1, kernel_size=3, lifting=True, bias=False)
with torch.no_grad():
    layer.weight.copy_(torch.tensor([-1.0, -2, 0, 0, 0, 0, 1, 1, 1]).view_as(layer.weight))  # finds upper edges
crab = torch.from_numpy(drawings(37)[0]).mean(2)[None, None]
with torch.no_grad():
    upright = layer(crab)[0, 0]  # (4, 37, 37): one map for each rotation
    turned = layer(torch.rot90(crab, 1, (2, 3)))[0, 0]

# %%
# Map 1 of the turned image is map 0 of the image, turned.
print("equal:", torch.allclose(turned[1], torch.rot90(upright[0]), atol=1e-6))
images = torch.rand(3, 1, 13, 13)
print(equivariance_error(layer, images, "c4", "regular image"))

# %%
figure, axes = plt.subplots(2, 5, figsize=(5.5, 2.7), layout="constrained")
for row, image, maps in ((axes[0], crab, upright), (axes[1], torch.rot90(crab, 1, (2, 3)), turned)):
    row[0].imshow(image[0, 0], cmap="gray")
    for axis, each in zip(row[1:], maps, strict=True):
        axis.imshow(each, cmap="magma", vmin=0, vmax=float(upright.max()))
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
for axis, name in zip(axes[0], ("image", "map 0", "map 1", "map 2", "map 3"), strict=True):
    axis.set_title(name, fontsize=10)
plt.show()
