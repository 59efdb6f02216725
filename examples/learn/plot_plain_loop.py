"""
A plain training loop
=====================

A network of ``unpose.nn`` is an ordinary ``torch.nn.Module``: any training loop will do. Both networks here learn from
300 upright digits; only the one with eight rotations also recognises turned ones. A 6 and a 9 are one class here.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from unpose.groups import rotation, scaling
from unpose.images import warp
from unpose.nn import create_network

digits = load_digits()
small = torch.from_numpy(digits.images[:500] / 16).float()
images = warp(small, scaling(torch.tensor(2.0)), shape=(21, 21))[:, None]  # (500, 1, 21, 21)
labels = torch.from_numpy(digits.target[:500]).clone()
labels[labels == 9] = 6
train, test = slice(0, 300), slice(300, 500)


def fitted(group, steps=60):
    """A network of this group after some steps on upright digits."""
    torch.manual_seed(0)
    network = create_network("group_cnn", group=group, in_channels=1, n_classes=9, image_size=21, width=6)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        batch = torch.randint(300, (32,))
        loss = cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


# %%
angles = torch.arange(0, 360, 15)
figure, axis = plt.subplots(figsize=(5.5, 3.85), subplot_kw={"projection": "polar"}, layout="constrained")
for group, name in (("c1", "no rotations"), ("c8", "eight rotations")):
    network = fitted(group)
    with torch.no_grad():
        right = [
            (network(warp(images[test], rotation(angle.deg2rad()))).argmax(1) == labels[test]).float().mean()
            for angle in angles
        ]
    print(f"{name}: {right[0]:.0%} upright, {sum(right) / len(right):.0%} on average over all angles")
    closed = torch.stack([*right, right[0]])
    axis.plot(torch.cat([angles, angles[:1]]).deg2rad(), closed, label=name)
axis.set(ylim=(0, 1), yticks=[0.5, 1.0], yticklabels=["50 %", "100 %"], theta_zero_location="N")
axis.set_title("right answers by angle")
axis.legend(loc="lower left", bbox_to_anchor=(-0.55, 0))
plt.show()
