"""
Group images whatever their pose
================================

Forty-five images of three drawings, each at a random rotation and shift. ``InvariantClustering`` is a scikit-learn
estimator: it finds the number of groups, an average of each group and the pose of every image. It is given no labels.
"""

import matplotlib.pyplot as plt
import numpy as np

from unpose import InvariantClustering
from unpose.data import drawings, posed

copies = posed(drawings(40), "se2", copies=15, max_shift=4.0)
order = np.random.default_rng(0).permutation(45)
images, truth = copies.images[order], copies.sources[order]
model = InvariantClustering(features="pixels").fit(images)
print(f"{model.n_clusters_} groups; sizes {np.bincount(model.labels_).tolist()}")

# %%
# In a notebook the fitted estimator shows its averages.
model

# %%
# Every group contains copies of one drawing only.
print("pure:", all(len(set(truth[model.labels_ == group])) == 1 for group in range(model.n_clusters_)))

# %%
figure = plt.figure(figsize=(5.5, 3.85), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.6, 1))
for axis, image in zip(left.subplots(5, 5).flat, images, strict=False):
    axis.imshow(image.clip(0, 1))
    axis.axis("off")
left.suptitle("given: any pose")
for group, axis in enumerate(np.atleast_1d(right.subplots(model.n_clusters_, 1))):
    axis.imshow(model.means_[group].clip(0, 1))
    axis.axis("off")
right.suptitle("found: averages")
plt.show()
