"""Measure a trained network: its outputs and accuracy, on images as they are and rotated."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unpose.audit import evaluation
from unpose.data import Split
from unpose.groups import rotation
from unpose.images import as_batch, border_level, warp
from unpose.train.batches import to_device
from unpose.train.processes import Processes

_BATCH = 256


def predict_logits(
    network: nn.Module, images: NDArray, *, angle: float = 0.0, batch_size: int = _BATCH, mixed: bool = False
) -> Tensor:
    """Compute the outputs of a network for images, optionally rotated first.

    Runs in evaluation mode on the network's device and restores the mode of every module afterwards. Pixels that a
    rotation brings in from outside the frame get the median level of the image's border.

    Parameters
    ----------
    network : torch.nn.Module
    images : (n, h, w) or (n, h, w, c) array
    angle : float, default 0.0
        Rotation in radians, counter-clockwise.
    batch_size : int, default 256
    mixed : bool, default False
        Use bfloat16 autocast.

    Returns
    -------
    torch.Tensor
        (n, n_classes), float32, on the CPU.

    Examples
    --------
    >>> from unpose.train import pretrained
    >>> predict_logits(pretrained("mnist-c8"), np.zeros((2, 28, 28), np.float32)).shape
    torch.Size([2, 10])
    """
    tensors = (each for each in chain(network.parameters(), network.buffers()) if each.is_floating_point())
    weights = next(tensors, torch.zeros(0))  # a module without any gets float32 images on the CPU
    found = []
    with evaluation(network):
        for start in range(0, len(images), batch_size):
            batch = as_batch(images[start : start + batch_size], dtype=weights.dtype)
            if angle:
                batch = rotated(batch, torch.tensor(angle, dtype=torch.float64))
            with torch.autocast(weights.device.type, torch.bfloat16, enabled=mixed):
                outputs = network(to_device(batch, weights.device))
            found.append(outputs.float())
    return torch.cat(found).cpu()  # the only synchronisation with a GPU


def rotated(batch: Tensor, angles: Tensor) -> Tensor:
    """Images (b, c, h, w) rotated by one angle, or by one each, with corners of the median level of their border."""
    level = torch.from_numpy(border_level(batch.float().numpy())).to(batch)[..., None, None]  # (b, c, 1, 1)
    return warp(batch - level, rotation(angles)) + level


def accuracy(network: nn.Module, split: Split, *, angle: float = 0.0, batch_size: int = _BATCH) -> float:
    """Compute the fraction of images that a network classifies correctly.

    Parameters
    ----------
    network : torch.nn.Module
    split : Split
        Images and labels.
    angle : float, default 0.0
        Rotate the images first, by this angle in radians.
    batch_size : int, default 256

    Returns
    -------
    float

    Examples
    --------
    >>> from unpose.data import load
    >>> from unpose.train import pretrained
    >>> split = load("digits").test
    >>> 0 <= accuracy(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(400, 10)), split) <= 1
    True
    """
    outputs = predict_logits(network, split.images, angle=angle, batch_size=batch_size)
    return float((outputs.argmax(1).numpy() == split.labels).mean())


def accuracy_by_angle(network: nn.Module, split: Split, angles: Sequence[float]) -> NDArray:
    """Compute the accuracy on images rotated by each of several angles.

    Parameters
    ----------
    network : torch.nn.Module
    split : Split
    angles : sequence of float
        In radians.

    Returns
    -------
    (len(angles),) array

    Examples
    --------
    >>> from unpose.data import load
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(400, 10))
    >>> accuracy_by_angle(network, load("digits").test, [0.0, 1.5]).shape
    (2,)
    """
    return np.array([accuracy(network, split, angle=angle) for angle in angles])


def validate(
    network: nn.Module, split: Split, processes: Processes, device: torch.device, *, mixed: bool = False
) -> tuple[float, float]:
    """Compute mean cross entropy and accuracy on a split; each process evaluates its share."""
    own = np.array_split(np.arange(len(split)), processes.count)[processes.rank]
    total = torch.zeros(2, dtype=torch.float64)
    if len(own):
        part = split.take(own)
        outputs, labels = predict_logits(network, part.images, mixed=mixed), torch.from_numpy(part.labels)
        total[0] = cross_entropy(outputs.double(), labels, reduction="sum")
        total[1] = (outputs.argmax(1) == labels).sum()
    loss, right = processes.sum(total.to(device)).tolist()
    return loss / len(split), right / len(split)
