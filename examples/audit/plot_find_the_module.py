"""
Which module breaks the symmetry?
=================================

A network of group convolutions with one mistake: a pooling layer that is not symmetric on odd sizes. ``audit_modules``
gives every module exactly transformed input, so that an error is charged to the module that makes it.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from unpose.audit import audit_modules
from unpose.nn import GroupConv2d, GroupPool


class Pool(nn.Module):
    """Maximum over 2 x 2 pixels, which leaves out the last row and column of an odd size."""

    def forward(self, x):
        return nn.functional.max_pool2d(x.flatten(1, 2), 2).unflatten(1, x.shape[1:3])


torch.manual_seed(0)
network = nn.Sequential(
    GroupConv2d("c4", 1, 4, 3, lifting=True), nn.ReLU(), Pool(), GroupConv2d("c4", 4, 4, 3), nn.ReLU(), GroupPool()
).eval()
report = audit_modules(network, torch.rand(4, 1, 15, 15), "c4")
report

# %%
# The error arrives at every later module, but only one causes it.
rows = report.rows[1:]
names = [f"{row.name}: {row.module}" for row in rows]
figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
axis.barh(names, [row.input_error for row in rows], color="lightgrey", height=0.75, label="arrives")
axis.barh(names, [row.own_error for row in rows], color="tab:red", height=0.4, label="made here")
axis.invert_yaxis()
axis.set(xlabel="relative error", title=f"breaks c4: {', '.join(report.culprits)}")
axis.legend()
plt.show()
