"""Which images a step sees, and at which poses: all of it a function of the seed and the step's number.

Nothing random is carried from step to step, so that a run that was stopped goes on as if it had not been.
"""

import hashlib
import math

import torch
from torch import Tensor

from unpose.data import Split
from unpose.groups import parse_continuous
from unpose.images import as_batch, warp
from unpose.train.processes import Processes
from unpose.train.recipe import PosePart


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


def training_batch(
    split: Split, rows: Tensor, poses: PosePart, seed: int, step: int, processes: Processes, device: torch.device
) -> tuple[Tensor, Tensor]:
    """This process's share of a step's images, each at its random pose, and their labels: (b, c, h, w) and (b,)."""
    share = torch.arange(len(rows)).tensor_split(processes.count)[processes.rank]
    own = rows[share].numpy()
    images = as_batch(split.images[own], dtype=torch.float32).to(device)
    if not poses.still:
        # Drawn for the whole batch: a process's images have the same poses however many processes there are.
        drawn = _random_poses(poses, len(rows), seed_for(seed, "poses", step))
        images = warp(images, drawn[share].to(images))
    return images, torch.from_numpy(split.labels[own]).to(device)


def _random_poses(poses: PosePart, count: int, seed: int) -> Tensor:
    group = parse_continuous("similarity+mirror" if poses.mirror else "similarity")
    return group.random(
        count,
        generator=torch.Generator().manual_seed(seed),
        max_angle=math.radians(poses.max_angle),
        max_shift=poses.max_shift,
        max_scale=poses.max_scale,
        dtype=torch.float64,
    )
