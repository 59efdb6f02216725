"""
Symmetric objects have several poses
====================================

A square fits onto itself in four ways, a triangle in three, a letter F in one. ``align`` returns the other poses that
fit equally well as ``alternatives``, so that an ambiguous pose is never mistaken for a certain one.
"""

import matplotlib.pyplot as plt
import numpy as np

from unpose.align import align

y, x = np.mgrid[-20:20, -20:20] + 0.5
angle, radius = np.arctan2(y, x), np.hypot(x, y)


def polygon(sides):
    """A regular polygon with a soft edge."""
    sector = np.mod(angle, 2 * np.pi / sides) - np.pi / sides
    return 1 / (1 + np.exp(2.0 * (radius * np.cos(sector) - 8.0)))


letter = np.zeros((40, 40))
letter[8:32, 13:17] = letter[8:12, 13:28] = letter[18:22, 13:24] = 1
shapes = {
    "F": letter,
    "bar": np.where((abs(x) < 14) & (abs(y) < 3), 1.0, 0.0),
    "triangle": polygon(3),
    "square": polygon(4),
}
images = np.stack(list(shapes.values())).astype(np.float32)
found = align(images, images, group="so2")

# %%
figure, axes = plt.subplots(2, 2, figsize=(5.5, 4.4), subplot_kw={"projection": "polar"}, layout="constrained")
for axis, name, image, first, others in zip(axes.flat, shapes, images, found.poses, found.alternatives, strict=True):
    poses = np.concatenate([first[None], others])
    angles = np.arctan2(poses[:, 0, 1], poses[:, 0, 0])
    axis.vlines(angles, 0.55, 1, color="tab:orange", linewidth=3)
    axis.set(ylim=(0, 1), xticks=np.radians(range(0, 360, 90)), yticks=[])
    axis.tick_params(labelsize=8, pad=-1)
    inset = axis.inset_axes([0.28, 0.28, 0.44, 0.44])
    inset.imshow(image, cmap="gray")
    inset.axis("off")
    axis.set_title(f"{name}: {len(poses)}", fontsize=11)
figure.suptitle("rotations that fit equally well")
plt.show()
