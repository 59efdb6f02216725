"""
Outlines: shapes as closed curves
=================================

A closed curve is a sequence of complex numbers. Its distance from another over all rotations, starting points, shifts,
scales and mirrors is one Fourier transform. Five kinds of shapes, each drawn four times at any pose, fall apart.
"""

import matplotlib.pyplot as plt
import numpy as np

from unpose.contours import outline_distances, resample

generator = np.random.default_rng(0)
angle = np.linspace(0, 2 * np.pi, 200, endpoint=False)
kinds = [
    1 + 0.3 * np.cos(3 * angle),
    1 + 0.25 * np.cos(5 * angle),
    1 / np.sqrt(np.cos(angle) ** 2 + 4 * np.sin(angle) ** 2),
    1 + 0.5 * np.cos(angle) ** 3,
    1 + 0.3 * np.sin(2 * angle) + 0.2 * np.cos(3 * angle),
]
outlines = []
for radius in kinds:
    for _ in range(4):
        wobble = 1 + 0.03 * np.cos(generator.integers(2, 6) * angle + generator.uniform(0, 6))
        curve = radius * wobble * np.exp(1j * (angle + generator.uniform(0, 2 * np.pi)))
        outlines.append(resample(curve.conj() if generator.random() < 0.5 else curve, 128))
match = outline_distances(np.stack(outlines))

# %%
figure = plt.figure(figsize=(5.5, 3.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25))
for axis, curve in zip(left.subplots(5, 4).flat, outlines, strict=True):
    axis.fill(curve.real, curve.imag, color="C0")
    axis.set_aspect("equal")
    axis.axis("off")
axis = right.subplots()
image = axis.imshow(match.distances, cmap="viridis")
axis.set(title="distance over all poses", xticks=[], yticks=[])
right.colorbar(image, ax=axis, shrink=0.7)
plt.show()
