"""
The sphere: no seams and no poles
=================================

Attention on latitude-longitude images weights pixels by their area, so that a rotation of the globe commutes with it
although the grid is crowded at the poles. A plain average over a window of pixels does not.
"""

import matplotlib.pyplot as plt
import torch

from unpose.groups import parse
from unpose.sphere import directions, rotate, sphere_attention

points = directions(36, 72)  # (36, 72, 3)
centres = torch.nn.functional.normalize(torch.randn(9, 3, generator=torch.Generator().manual_seed(1)), dim=1)
globe = torch.exp(25 * (torch.einsum("hwd,kd->khw", points, centres) - 1)).sum(0)[None, None]  # (1, 1, 36, 72)
turn = parse("so3").exp(torch.tensor([1.2, 0.3, 0.4]))


def attention(x):
    """One head with constant queries: an average over a disc on the sphere."""
    maps = x[:, None]
    return sphere_attention(torch.zeros_like(maps), maps, maps, torch.zeros(1, 6), 0.5)[:, 0]


def window(x):
    """An average over the same number of pixels everywhere on the grid."""
    return torch.nn.functional.avg_pool2d(torch.nn.functional.pad(x, (5, 5, 5, 5), mode="circular"), 11, stride=1)


# %%
figure, axes = plt.subplots(2, 3, figsize=(5.5, 2.9), layout="constrained")
for row, f, name in ((axes[0], attention, "attention"), (axes[1], window, "window")):
    first, second = rotate(f(globe), turn), f(rotate(globe, turn))
    error = float((first - second).norm() / first.norm())
    print(f"{name}: relative error {error:.3f}")
    pictures = {f"{name}, turned": first, f"turned, {name}": second, f"difference: {error:.0%}": (first - second).abs()}
    for axis, (title, image) in zip(row, pictures.items(), strict=True):
        axis.imshow(image[0, 0], cmap="magma", vmin=0, vmax=float(first.max()))
        axis.set_title(title, fontsize=9)
        axis.axis("off")
plt.show()
