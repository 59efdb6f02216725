"""
How invariant is a function, really?
====================================

An error needs two things beside it: the floor, which is what interpolation alone changes, and a control, a
transformation that the function need not ignore. Here the function is the mean brightness of rings about the centre.
"""

import matplotlib.pyplot as plt
import torch

from unpose.audit import equivariance_error
from unpose.data import drawings
from unpose.images import pixel_grid

images = torch.from_numpy(drawings(41)).permute(0, 3, 1, 2)  # (3, 3, 41, 41)
radius = pixel_grid((41, 41)).norm(dim=-1)
rings = torch.stack([(radius >= r) & (radius < r + 3) for r in range(0, 18, 3)]).float()  # (6, 41, 41)


def brightness(x):
    """The mean brightness of each ring: (n, c, h, w) -> (n, c, 6)."""
    return torch.einsum("nchw,rhw->ncr", x, rings / rings.sum((1, 2), keepdim=True))


report = equivariance_error(brightness, images, "so2", n_elements=14)
report

# %%
# Quarter turns are exact. Between them, the error is what interpolation does.
order = sorted(range(len(report.elements)), key=lambda k: report.errors[k])
names = [report.elements[k] for k in order] + [f"control: {report.control}"]
figure, axis = plt.subplots(figsize=(5.5, 4.4), layout="constrained")
axis.barh(names, [*report.errors[order], report.control_error], color="C0", label="error")
axis.plot([*report.floors[order], report.control_floor], names, "|", color="C1", markersize=11, mew=3, label="floor")
axis.set(xlabel="relative change of the output")
axis.tick_params(axis="y", labelsize=8)
axis.legend()
plt.show()
