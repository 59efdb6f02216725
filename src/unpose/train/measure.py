"""What a trained network gets right: on images as they are, and turned by every angle of a sweep."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unpose.data import Split
from unpose.groups import rotation
from unpose.images import as_batch, warp
from unpose.images.canvas import border_level
from unpose.train.batches import sent
from unpose.train.processes import Processes

_BATCH = 256


@torch.no_grad()
def logits_of(
    network: nn.Module, images: NDArray, *, angle: float = 0.0, batch_size: int = _BATCH, mixed: bool = False
) -> Tensor:
    """The outputs of a network for images, turned by an angle in radians first: (n, h, w[, c]) -> (n, classes).

    What turning brings in from outside the frame is as light as the image's border. Runs in evaluation mode on the
    network's own device and leaves the mode of each part as it was. ``mixed`` computes products in bfloat16.
    """
    weights = next(network.parameters())
    modes = [(module, module.training) for module in network.modules()]  # a part may be frozen in training
    network.eval()
    try:
        found = []
        for start in range(0, len(images), batch_size):
            batch = as_batch(images[start : start + batch_size], dtype=weights.dtype)
            if angle:
                # black corners on a light ground would be another image
                level = torch.from_numpy(border_level(batch.float().numpy())).to(batch)  # (b, c)
                ground = level[..., None, None]
                batch = warp(batch - ground, rotation(torch.tensor(angle, dtype=torch.float64))) + ground
            with torch.autocast(weights.device.type, torch.bfloat16, enabled=mixed):
                outputs = network(sent(batch, weights.device))
            found.append(outputs.float())
        return torch.cat(found).cpu()  # the only place that waits for a GPU
    finally:
        for module, training in modes:
            module.training = training


def accuracy(network: nn.Module, split: Split, *, angle: float = 0.0, batch_size: int = _BATCH) -> float:
    """The share of images whose largest output is their class."""
    outputs = logits_of(network, split.images, angle=angle, batch_size=batch_size)
    return float((outputs.argmax(1).numpy() == split.labels).mean())


def accuracy_by_angle(network: nn.Module, split: Split, angles: Sequence[float]) -> NDArray:
    """The accuracy on images turned by each of the angles, in radians: (angles,)."""
    return np.array([accuracy(network, split, angle=angle) for angle in angles])


def validate(
    network: nn.Module, split: Split, processes: Processes, device: torch.device, *, mixed: bool = False
) -> tuple[float, float]:
    """Mean cross entropy and accuracy on a split; each process measures its share of it."""
    own = np.array_split(np.arange(len(split)), processes.count)[processes.rank]
    total = torch.zeros(2, dtype=torch.float64)
    if len(own):
        part = split.take(own)
        outputs, labels = logits_of(network, part.images, mixed=mixed), torch.from_numpy(part.labels)
        total[0] = cross_entropy(outputs.double(), labels, reduction="sum")
        total[1] = (outputs.argmax(1) == labels).sum()
    loss, right = processes.sum(total.to(device)).tolist()
    return loss / len(split), right / len(split)
