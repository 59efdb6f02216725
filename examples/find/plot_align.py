"""
Find the pose of one image in another
=====================================

``align`` searches the whole circle and all shifts, then refines. Here the group is ``similarity+mirror``: the copies
are rotated, shifted, scaled and some of them mirrored, and the poses that are found undo all of it.
"""

import matplotlib.pyplot as plt
import numpy as np

from unpose.align import align
from unpose.cluster import apply_poses
from unpose.data import drawings, posed

creature = drawings(40)[2:]  # (1, 48, 48, 3)
copies = posed(creature, "similarity+mirror", copies=5, max_shift=5.0, max_scale=1.3, random_state=2)
references = np.repeat(creature, 5, axis=0)
found = align(copies.images, references, group="similarity+mirror", max_scale=1.4)
upright = apply_poses(copies.images, found.poses)

# %%
# The pose that is found and the true pose cancel: their product is the identity.
print(f"largest error of a pose, in pixels and radians: {np.abs(found.poses @ copies.poses - np.eye(3)).max():.3f}")

# %%
figure, axes = plt.subplots(2, 5, figsize=(5.5, 2.6), layout="constrained")
for column in range(5):
    axes[0, column].imshow(copies.images[column].clip(0, 1))
    axes[1, column].imshow(upright[column].clip(0, 1))
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("given")
axes[1, 0].set_ylabel("aligned")
plt.show()
