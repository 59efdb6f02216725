"""
Bring each image to its upright pose
====================================

``canonicalize`` puts a search for the upright pose in front of a model that one already has. The model is not changed,
and it never sees a turned image. Here the pose is found by comparing with upright references.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose import canonicalize, posed
from unpose.adapt import search
from unpose.groups import scaling
from unpose.images import warp

digits = load_digits()
images = warp(torch.from_numpy(digits.images / 16).float(), scaling(torch.tensor(2.0)), shape=(22, 22)).numpy()
keep = digits.target < 6  # a 6 upside down is a 9
images, labels = images[keep], digits.target[keep]
classifier = LogisticRegression(max_iter=200).fit(images[:600].reshape(600, -1), labels[:600])

# %%
# Sixty upright digits are the references; the others are turned by any angle.
adapted = canonicalize(classifier, search(images[:60], group="so2"))
turned, truth = posed(images[700:780], "so2").images, labels[700:780]
upright = adapted.views_of(torch.from_numpy(turned)[:, None])[0]
print(f"right answers: {classifier.score(turned.reshape(80, -1), truth):.0%} as they are, "
      f"{np.mean(adapted(turned).argmax(1) == truth):.0%} adapted")  # fmt: skip

# %%
figure, axes = plt.subplots(2, 8, figsize=(5.5, 1.9), layout="constrained")
for column in range(8):
    axes[0, column].imshow(turned[column], cmap="gray")
    axes[1, column].imshow(upright[column, 0], cmap="gray")
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("given")
axes[1, 0].set_ylabel("upright")
plt.show()
