"""
A network for point clouds
==========================

The answer of ``egnn`` does not change when a cloud is rotated, shifted or mirrored, nor when its points are listed in
another order. The picture shows its scores and those of an ordinary network along a rotation.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from unpose.groups import parse, transform
from unpose.points import egnn

torch.manual_seed(0)
cloud = torch.randn(30, 3) * torch.tensor([1.0, 2.0, 0.5])
angles = torch.linspace(0, 2 * torch.pi, 60)
axis_of_rotation = torch.nn.functional.normalize(torch.tensor([1.0, 2.0, 3.0]), dim=0)
turned = transform(parse("so3").exp(angles[:, None] * axis_of_rotation), cloud)  # (60, 30, 3)
shuffled = turned[:, torch.randperm(30)]

# %%
networks = {"ordinary": nn.Sequential(nn.Flatten(), nn.Linear(90, 32), nn.ReLU(), nn.Linear(32, 4)), "egnn": egnn(4)}
figure, axes = plt.subplots(1, 2, figsize=(5.5, 3.2), layout="constrained")
for axis, (name, network) in zip(axes, networks.items(), strict=True):
    with torch.no_grad():
        scores, other_order = network.eval()(turned), network(shuffled)
    print(f"{name}: change by rotation {(scores - scores[0]).abs().max():.1e}, "
          f"by order {(other_order - scores).abs().max():.1e}")  # fmt: skip
    axis.plot(torch.rad2deg(angles), scores)
    axis.set(title=name, xlabel="rotation in degrees", xticks=[0, 180, 360])
axes[0].set_ylabel("four scores")
plt.show()
