"""
o3 and e3: mirrors of space
===========================

A left hand is no rotated right hand. The groups ``o3`` (rotations and mirrors) and ``e3`` (with shifts) contain the
mirror; ``so3`` and ``se3`` do not. Here a helix is registered onto its mirror image, without and with mirrors.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from unpose.groups import parse, transform
from unpose.points import register

turns = torch.linspace(0, 4 * torch.pi, 150, dtype=torch.float64)
helix = torch.stack([turns.cos(), turns.sin() * (1 + 0.05 * turns), 0.35 * turns], dim=1)  # (150, 3)
generator = torch.Generator().manual_seed(3)
mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0, 1.0], dtype=torch.float64))
other = transform(parse("se3").random(1, generator=generator, dtype=torch.float64)[0] @ mirror, helix)

# %%
# The determinant of the pose says whether it mirrors.
figure, axes = plt.subplots(1, 2, figsize=(5.5, 3.3), subplot_kw={"projection": "3d"}, layout="constrained")
for axis, mirrors in zip(axes, (False, True), strict=True):
    found = register(helix, other, mirrors=mirrors)
    moved = transform(torch.from_numpy(found.pose), helix)
    print(f"mirrors={mirrors}: residual {found.residual:.3f}, determinant {np.linalg.det(found.pose):+.0f}")
    axis.plot(*other.T, color="C0", linewidth=4, alpha=0.5, label="target")
    axis.plot(*moved.T, color="C1", linewidth=1.5, label="moved")
    axis.set_title(f"{'e3' if mirrors else 'se3'}: residual {found.residual:.2g}")
    axis.view_init(elev=8, azim=-10)
    axis.set_aspect("equal")
    axis.axis("off")
axes[0].legend(loc="upper left", fontsize=8)
plt.show()
