"""Which images a step sees, and at which poses: all of it a function of the seed and the step's number.

Nothing random is carried from step to step, so that a run that was stopped goes on as if it had not been.
"""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.data import Split
from unpose.groups import parse_continuous
from unpose.images import as_batch, displacements, sample, source_points
from unpose.train.processes import Processes
from unpose.train.recipe import PosePart

_SHELF_SHARE = 0.25
"""Of a GPU's free memory, what training images may take to stay there."""
_CHUNK = 4096
"""Images that are made ready at once."""
_NODES = 5
"""Across an image, where a bend is drawn; between them it is smooth."""


def seed_for(seed: int, purpose: str, number: int = 0) -> int:
    """A seed of its own for each use of a run's seed: 63 bits of a hash."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def steps_in_epoch(images: int, batch: int) -> int:
    """Whole batches; images beyond them wait for the next epoch's order. Fewer images than a batch are one step."""
    return max(1, images // batch)


def order_of_epoch(images: int, seed: int, epoch: int) -> Tensor:
    """The numbers of all images in the order in which an epoch takes them: (images,)."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(seed_for(seed, "order", epoch)))


@dataclass(frozen=True)
class Shelf:
    """Where steps take their images from: on a GPU all are there already, where they take little of its memory."""

    split: Split
    device: torch.device
    images: Tensor | None = None  # (n, c, h, w) float32 on the device
    labels: Tensor | None = None  # (n,)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The images with these numbers and their labels, on the device: (b, c, h, w) and (b,)."""
        if self.images is not None and self.labels is not None:
            there = sent(rows, self.device)
            return self.images.index_select(0, there), self.labels.index_select(0, there)
        own = rows.numpy()
        images = as_batch(self.split.images[own], dtype=torch.float32)
        return sent(images, self.device), sent(torch.from_numpy(self.split.labels[own]), self.device)


def make_shelf(split: Split, device: torch.device) -> Shelf:
    """The training images, put on a GPU once if they take less than a quarter of its free memory as float32."""
    size = 4 * math.prod(split.images.shape)
    if device.type != "cuda" or size > _SHELF_SHARE * torch.cuda.mem_get_info(device)[0]:
        return Shelf(split, device)
    chunks = [split.images[start : start + _CHUNK] for start in range(0, len(split), _CHUNK)]
    images = torch.cat([as_batch(chunk, dtype=torch.float32).to(device) for chunk in chunks]).contiguous()
    return Shelf(split, device, images, torch.tensor(split.labels, device=device))


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; nothing waits for a GPU, which may be busy with the step before.

    On a GPU its numbers lie in the order of its axes, as in what is taken from a shelf: layers may round by that order.
    """
    if device.type != "cuda":
        return tensor.to(device)
    waiting = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return waiting.copy_(tensor).to(device, non_blocking=True)


def training_batch(
    shelf: Shelf, rows: Tensor, poses: PosePart, seed: int, step: int, processes: Processes
) -> tuple[Tensor, Tensor]:
    """This process's share of a step's images, each at its random pose, and their labels: (b, c, h, w) and (b,)."""
    share = torch.arange(len(rows)).tensor_split(processes.count)[processes.rank]
    images, labels = shelf.take(rows[share])
    if not poses.still:
        # Drawn for the whole batch: a process's images have the same poses however many processes there are.
        drawn = _random_poses(poses, len(rows), seed_for(seed, "poses", step))
        shape = images.shape[-2], images.shape[-1]
        points = source_points(sent(drawn[share].to(images.dtype), images.device), shape)
        if poses.bend:
            bends = _random_bends(poses.bend, len(rows), seed_for(seed, "bends", step))
            points = points + displacements(sent(bends[share].to(images.dtype), images.device), shape)
        images = sample(images, points)
    return images, labels


def _random_bends(bend: float, count: int, seed: int) -> Tensor:
    """Displacements at the nodes, (count, nodes, nodes, 2); their mean is zero: an image is bent and not shifted."""
    drawn = torch.randn(count, _NODES, _NODES, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return bend * (drawn - drawn.mean((1, 2), keepdim=True))


def _random_poses(poses: PosePart, count: int, seed: int) -> Tensor:
    # Without a stretch the smaller group: the same poses, to the last bit, as before there was one.
    kind = "affine" if poses.max_stretch > 1 else "similarity"
    group = parse_continuous(f"{kind}+mirror" if poses.mirror else kind)
    return group.random(
        count,
        generator=torch.Generator().manual_seed(seed),
        max_angle=math.radians(poses.max_angle),
        max_shift=poses.max_shift,
        max_scale=poses.max_scale,
        max_stretch=poses.max_stretch,
        dtype=torch.float64,
    )
