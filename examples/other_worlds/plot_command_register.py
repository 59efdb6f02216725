"""
unpose register: two point clouds
=================================

The rigid motion between two scans of one object, without knowing which points correspond and at any angle. The second
scan has other points, noise and a part that is missing.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from unpose.cli import main
from unpose.groups import parse, transform

generator = np.random.default_rng(0)


def scan(count):
    """Random points on a spiral band."""
    angle, width = generator.uniform(0, 3 * np.pi, count), generator.uniform(-0.4, 0.4, count)
    radius = 0.6 + 0.12 * angle
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), 0.25 * angle + width], axis=1)


temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
motion = parse("se3").random(1, generator=torch.Generator().manual_seed(4), dtype=torch.float64, max_shift=1.5)[0]
first, second = scan(500), scan(500)
second = second[second[:, 2] > 0.3]  # a part is missing
second = transform(motion, torch.from_numpy(second)).numpy() + generator.normal(scale=0.01, size=second.shape)
np.save(folder / "a.npy", first)
np.save(folder / "b.npy", second)

# %%
# The command as in a shell; ``-o`` writes the moved points.
with contextlib.chdir(folder):
    main("register a.npy b.npy -o moved.xyz".split(), standalone_mode=False)
moved = np.loadtxt(folder / "moved.xyz")

# %%
figure, axes = plt.subplots(1, 2, figsize=(5.5, 3.1), subplot_kw={"projection": "3d"}, layout="constrained")
for axis, points, name in ((axes[0], first, "as scanned"), (axes[1], moved, "registered")):
    axis.scatter(*second.T, s=3, color="C0")
    axis.scatter(*points.T, s=3, color="C1")
    axis.set_title(name)
    axis.set_aspect("equal")
    axis.set(xticklabels=[], yticklabels=[], zticklabels=[])
plt.show()
