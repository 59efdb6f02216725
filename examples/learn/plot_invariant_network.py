"""
A network whose answer does not change
======================================

The scores of two untrained networks while the input is rotated by the full circle. ``group_cnn`` with eight rotations
keeps its answer, up to interpolation, without having seen a single example; its twin without rotations does not.
"""

import matplotlib.pyplot as plt
import torch

from unpose.data import drawings
from unpose.groups import rotation
from unpose.images import warp
from unpose.nn import count_parameters, group_cnn

torch.manual_seed(0)
seven = torch.from_numpy(drawings(29)[1]).mean(2)[None, None]  # (1, 1, 29, 29)
angles = torch.arange(0, 361, 5)
turned = warp(seven, rotation(torch.deg2rad(angles)))  # (73, 1, 29, 29)

# %%
figure, axes = plt.subplots(1, 2, figsize=(5.5, 3.4), sharey=True, layout="constrained")
for axis, group in zip(axes, ("c1", "c8"), strict=True):
    network = group_cnn(group, in_channels=1, n_classes=4, image_size=29, width=8).eval()
    with torch.no_grad():
        scores = network(turned)
    change = (scores - scores[0]).norm(dim=1).max() / scores.std()
    print(f"{group}: {count_parameters(network):,} parameters, largest change {change:.2f} standard deviations")
    axis.plot(angles, (scores - scores.mean()) / scores.std())
    axis.set(title=f"{group}", xlabel="rotation in degrees", xticks=[0, 90, 180, 270, 360])
axes[0].set_ylabel("scores of four classes")
plt.show()
