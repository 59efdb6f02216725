"""
Which layer feels a small shift?
================================

The Lie derivative is the change of a network's output for an infinitely small motion of its input. It splits into
shares of the modules: pooling and strides alias, padding feels the border.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from unpose.audit import lie_derivative, smooth_noise

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(),
    nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
).eval()  # fmt: skip
images = smooth_noise(6, 1, (28, 28))
report = lie_derivative(network, images, ("x", "rotation"))
report

# %%
rows = [row for row in report.rows if max(row.sizes) > 0.01 * max(max(each.sizes) for each in report.rows)]
places = np.arange(len(rows))
figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for number, generator in enumerate(report.generators):
    axis.barh(places + 0.2 * (2 * number - 1), [row.sizes[number] for row in rows], 0.38, label=generator)
axis.set(yticks=places, yticklabels=[f"{row.name}: {row.module}" for row in rows], xlabel="change per pixel of motion")
axis.invert_yaxis()
axis.legend()
plt.show()
