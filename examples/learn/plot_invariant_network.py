"""
A network whose answer does not change
======================================

The probability of the right class while a digit is rotated by the full circle. ``mnist-c8``, a network of the package,
has eight rotations built in; logistic regression on upright digits of the same kind has not.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose import pretrained
from unpose.groups import rotation, scaling
from unpose.images import warp

digits = load_digits()
small = torch.from_numpy(digits.images / 16).float()
images = warp(small, scaling(torch.tensor(2.5)), shape=(28, 28))  # (1797, 28, 28)
flat = LogisticRegression(max_iter=100).fit(images[100:600].flatten(1), digits.target[100:600])
network = pretrained("mnist-c8")

# %%
angles = torch.arange(0, 361, 5)
figure, axes = plt.subplots(2, 1, figsize=(5.5, 3.85), sharex=True, layout="constrained")
for axis, index in zip(axes, (2, 3), strict=True):
    turned = warp(images[index], rotation(torch.deg2rad(angles)))  # (73, 28, 28)
    digit = digits.target[index]
    with torch.no_grad():
        ours = network(turned[:, None]).softmax(1)[:, digit]
    axis.plot(angles, ours, label="mnist-c8", color="C0")
    axis.plot(angles, flat.predict_proba(turned.flatten(1))[:, digit], label="logistic regression", color="C1")
    axis.set(ylabel=f"probability of {digit}", xticks=range(0, 361, 90), ylim=(-0.05, 1.05))
axes[0].legend(loc="center")
axes[1].set_xlabel("rotation in degrees")
plt.show()
