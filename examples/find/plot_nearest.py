"""
Nearest neighbours up to pose
=============================

The three nearest neighbours of some handwritten digits among 250, each at a random rotation and shift. By raw pixels
the neighbours agree in pose; with the distance over the orbit they agree in what they show.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from unpose import nearest, posed, warp
from unpose.groups import scaling

digits = load_digits()
chosen = np.flatnonzero(digits.target != 9)[:250]  # a 9 is a 6 upside down
small = torch.from_numpy(digits.images[chosen] / 16).float()  # (250, 8, 8)
large = warp(small, scaling(torch.tensor(2.6)), shape=(30, 30))
images = posed(large, "se2", max_shift=2.0).images
labels = digits.target[chosen]

orbit = nearest(images, 3)
_, plain = NearestNeighbors(n_neighbors=4).fit(images.reshape(250, -1)).kneighbors()
plain = plain[:, :3]
print(f"the nearest neighbour shows the same digit: {np.mean(labels[plain[:, 0]] == labels):.0%} by raw pixels, "
      f"{np.mean(labels[orbit.indices[:, 0]] == labels):.0%} up to pose")  # fmt: skip

# %%
# A red frame marks another digit.
figure, axes = plt.subplots(4, 7, figsize=(5.5, 3.5), layout="constrained")
for row, index in zip(axes, (2, 3, 4, 7), strict=True):
    for axis, other in zip(row, [index, *plain[index], *orbit.indices[index]], strict=True):
        axis.imshow(images[other], cmap="gray")
        axis.set(xticks=[], yticks=[])
        for edge in axis.spines.values():
            edge.set(color="tab:red" if labels[other] != labels[index] else "lightgrey", linewidth=2.5)
for column, name in ((0, "digit"), (2, "by raw pixels"), (5, "up to pose")):
    axes[0, column].set_title(name, fontsize=11)
plt.show()
