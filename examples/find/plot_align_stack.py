"""
Average what is too noisy to see
================================

Eighty noisy pictures of one object at unknown poses. Their plain average is a blur. ``align_stack`` aligns them to each
other and averages them; every pixel comes with its standard error.
"""

import matplotlib.pyplot as plt
import numpy as np

from unpose import align_stack
from unpose.data import drawings, posed

crab = drawings(40)[:1].mean(3)  # (1, 40, 40)
copies = posed(crab, "se2", copies=80, max_shift=4.0)
noisy = copies.images + 0.35 * np.random.default_rng(0).normal(size=copies.images.shape).astype(np.float32)
stack = align_stack(noisy)

# %%
figure, axes = plt.subplots(2, 3, figsize=(5.5, 3.85), layout="constrained")
shown = {
    "one of 80": noisy[0],
    "another": noisy[1],
    "the plain average": noisy.mean(0),
    "aligned, then averaged": stack.mean,
    "its standard error": stack.standard_error,
    "without noise": copies.images[stack.exemplar],
}
for axis, (name, image) in zip(axes.flat, shown.items(), strict=True):
    axis.imshow(image, cmap="gray")
    axis.set_title(name, fontsize=10)
    axis.axis("off")
plt.show()
