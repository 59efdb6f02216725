"""
Features of the shrunk image are the shrunk features
====================================================

An image at half the resolution has lost its high frequencies. A layer commutes with this if each frequency of its
output depends on equal or lower frequencies of its input only. An ordinary activation breaks the law, because it moves
high frequencies into low ones.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import gelu

from unpose.data import drawings
from unpose.images import fourier_resize
from unpose.nn import ScaleFourier2d, scale_activation

torch.manual_seed(0)
crab = torch.from_numpy(drawings(48)[0]).mean(2)[None, None].float()
layer = ScaleFourier2d(1, 1, kernel_size=5, size=48, bias=False)
small = (17, 17)

# %%
# The difference between the features of the shrunk image and the shrunk features:
differences = {}
with torch.no_grad():
    for name, activation in (("scale activation", scale_activation), ("ordinary activation", gelu)):
        # Contrast and a threshold, so that the activation does something.
        features = [activation(20 * layer(image) - 2) for image in (crab, fourier_resize(crab, small))]
        wanted, found = fourier_resize(features[0], small), features[1]
        differences[name] = (features[0], wanted, found)
        print(f"{name}: {float((found - wanted).norm() / wanted.norm()):.0e}")

# %%
figure, axes = plt.subplots(2, 4, figsize=(7.5, 4), layout="constrained")
for row, (name, maps) in zip(axes, differences.items(), strict=True):
    for axis, each in zip(row, (*maps, maps[2] - maps[1]), strict=True):
        axis.imshow(each[0, 0], cmap="magma", vmin=maps[1].min(), vmax=maps[1].max())
        axis.set(xticks=[], yticks=[])
    row[3].images[0].set(cmap="RdBu", clim=(-1, 1))
    row[0].set_ylabel(name)
for axis, title in zip(
    axes[0], ("features", "shrunk features", "features of the\nshrunk image", "difference"), strict=True
):
    axis.set_title(title, fontsize=10)
plt.show()
