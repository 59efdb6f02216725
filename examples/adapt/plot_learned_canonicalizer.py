"""
Train a network to find the upright pose
========================================

``fit_canonicalizer`` trains a small equivariant network that scores the rotated views of an image. It needs upright
images and no labels. The picture shows the views that it takes for upright.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from unpose.adapt import canonicalize, fit_canonicalizer, learned
from unpose.data import drawings, posed
from unpose.images import quarter_turn

upright = posed(drawings(24).mean(3), "se2", copies=40, max_angle=0.2, max_shift=2.0).images  # (120, 24, 24)
torch.manual_seed(0)
finder = learned("c4", 1)
new = torch.from_numpy(
    posed(drawings(24).mean(3), "se2", copies=8, max_angle=0.2, max_shift=2.0, random_state=1).images
)
turned = torch.cat([quarter_turn(new, k) for k in range(4)])[:, None]  # (96, 1, 24, 24)
as_it_is = canonicalize(nn.Identity(), finder)
before = as_it_is.views_of(turned)[0]
fit_canonicalizer(None, upright, canonicalizer=finder, steps=40, batch_size=32)
after = as_it_is.views_of(turned)[0]

# %%
wanted = new.repeat(4, 1, 1)[:, None]
for name, found in (("untrained", before), ("trained", after)):
    print(f"{name}: {((found - wanted).abs().amax((1, 2, 3)) < 1e-3).float().mean():.0%} upright")
figure, axes = plt.subplots(3, 8, figsize=(5.5, 2.4), layout="constrained")
shown = range(0, 96, 12)
for row, images, name in zip(axes, (turned, before, after), ("given", "untrained", "trained"), strict=True):
    for axis, index in zip(row, shown, strict=True):
        axis.imshow(images[index, 0], cmap="gray")
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
