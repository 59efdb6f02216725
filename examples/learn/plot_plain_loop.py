"""
A plain training loop
=====================

A network of ``unpose.nn`` is an ordinary ``torch.nn.Module``: any training loop will do. Both networks here learn from
noisy drawings that are nearly upright; only the one with eight rotations also recognises turned ones.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy

from unpose.data import drawings, posed
from unpose.groups import rotation
from unpose.images import warp
from unpose.nn import create_network


def noisy(copies, seed):
    """Copies of three drawings within 17 degrees of upright, with noise, and the number of the drawing."""
    made = posed(drawings(21).mean(3), "se2", copies=copies, max_angle=0.3, max_shift=1.5, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(made.images)[:, None]  # (3 * copies, 1, 21, 21)
    return images + 0.15 * torch.randn(images.shape, generator=generator), torch.from_numpy(made.sources)


images, labels = noisy(60, seed=0)
test_images, test_labels = noisy(20, seed=1)


def fitted(group, steps=60):
    """A network of this group after some steps of training."""
    torch.manual_seed(0)
    network = create_network(
        "group_cnn", group=group, in_channels=1, n_classes=3, image_size=21, width=8, stages=(1, 1)
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        batch = torch.randint(len(images), (16,))
        loss = cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


# %%
angles = torch.arange(0, 361, 20).deg2rad()
figure, axis = plt.subplots(figsize=(5.5, 3.85), subplot_kw={"projection": "polar"}, layout="constrained")
for group, name in (("c1", "no rotations"), ("c8", "eight rotations")):
    network = fitted(group)
    with torch.no_grad():
        answers = torch.stack([network(warp(test_images, rotation(angle))).argmax(1) for angle in angles])
    right = (answers == test_labels).float().mean(1)
    print(f"{name}: {right[0]:.0%} upright, {right[:-1].mean():.0%} on average over all angles")
    axis.plot(angles, right, label=name)
axis.set(ylim=(0, 1.02), yticks=[0.5, 1.0], yticklabels=["50 %", "100 %"], theta_zero_location="N")
axis.set_title("right answers by angle")
axis.legend(loc="lower left", bbox_to_anchor=(-0.55, 0))
plt.show()
