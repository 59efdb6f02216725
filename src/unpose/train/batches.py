"""The images of a training step and their random poses, as a pure function of the seed and the step's number.

No random state is carried from step to step, so an interrupted run resumes to the same bits.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from unpose.data import Split
from unpose.groups import parse_continuous
from unpose.images import as_batch, border_level, displacements, sample, source_points
from unpose.train.processes import Processes
from unpose.train.recipe import PosePart

_CHUNK = 4096
"""Images converted and copied at once."""
_NODES = 5
"""Control points of an elastic deformation along each axis; interpolated smoothly in between."""


def seed_for(seed: int, purpose: str, number: int = 0) -> int:
    """Derive a seed for one purpose from the run's seed: 63 bits of a hash."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def steps_in_epoch(images: int, batch: int) -> int:
    """Number of full batches in an epoch, at least one; the remainder of the permutation is skipped."""
    return max(1, images // batch)


def order_of_epoch(images: int, seed: int, epoch: int) -> Tensor:
    """Return the permutation of image indices for an epoch: (images,)."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(seed_for(seed, "order", epoch)))


@dataclass(frozen=True)
class ImageStore:
    """The source of training images: resident on the GPU where they take little of its memory, else on the host."""

    split: Split
    device: torch.device
    images: Tensor | None = None  # (n, c, h, w) float32 on the device
    labels: Tensor | None = None  # (n,)

    @cached_property
    def levels(self) -> Tensor:
        """The median of the border of every image, (n, c, 1, 1) on the device."""
        chunks = (self.split.images[start : start + _CHUNK] for start in range(0, len(self.split), _CHUNK))
        levels = [border_level(as_batch(chunk, dtype=torch.float32).numpy()) for chunk in chunks]
        return torch.from_numpy(np.concatenate(levels))[..., None, None].float().to(self.device)

    def ground(self, rows: Tensor) -> Tensor:
        """The level that continues images outside of their frame, by index: (b, c, 1, 1), on the device."""
        return self.levels.index_select(0, to_device(rows, self.device))

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return images and labels by index, on the device: (b, c, h, w) and (b,)."""
        if self.images is not None and self.labels is not None:
            indices = to_device(rows, self.device)
            return self.images.index_select(0, indices), self.labels.index_select(0, indices)
        own = rows.numpy()
        images = as_batch(self.split.images[own], dtype=torch.float32)
        return to_device(images, self.device), to_device(torch.from_numpy(self.split.labels[own]), self.device)


def make_image_store(split: Split, device: torch.device, fraction: float) -> ImageStore:
    """Copy the training images to the GPU once, if as float32 they take at most a fraction of its free memory."""
    size = 4 * math.prod(split.images.shape)
    if device.type != "cuda" or size > fraction * torch.cuda.mem_get_info(device)[0]:
        return ImageStore(split, device)
    chunks = [split.images[start : start + _CHUNK] for start in range(0, len(split), _CHUNK)]
    images = torch.cat([as_batch(chunk, dtype=torch.float32).to(device) for chunk in chunks]).contiguous()
    return ImageStore(split, device, images, torch.tensor(split.labels, device=device))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device asynchronously, through pinned memory.

    On a GPU the result is contiguous, as images from an :class:`ImageStore` are: rounding may depend on strides.
    """
    if device.type != "cuda":
        return tensor.to(device)
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor).to(device, non_blocking=True)


def training_batch(
    store: ImageStore, rows: Tensor, poses: PosePart, seed: int, step: int, processes: Processes
) -> tuple[Tensor, Tensor]:
    """Return this process's share of a batch, each image at a random pose, and labels: (b, c, h, w) and (b,).

    Outside of its frame an image continues at the median of its border, as in the evaluation of a network.
    """
    share = torch.arange(len(rows)).tensor_split(processes.count)[processes.rank]
    images, labels = store.take(rows[share])
    if not poses.is_identity:
        # Drawn for the whole batch, so that poses do not depend on the number of processes.
        drawn = random_poses(poses, len(rows), seed_for(seed, "poses", step))
        shape = images.shape[-2], images.shape[-1]
        points = source_points(to_device(drawn[share].to(images.dtype), images.device), shape)
        if poses.bend:
            bends = random_bends(poses.bend, len(rows), seed_for(seed, "bends", step))
            points = points + displacements(to_device(bends[share].to(images.dtype), images.device), shape)
        ground = store.ground(rows[share])
        images = sample(images - ground, points) + ground
    return images, labels


def random_bends(bend: float, count: int, seed: int) -> Tensor:
    """Draw displacements at the control points, (count, nodes, nodes, 2), with zero mean: no net shift."""
    drawn = torch.randn(count, _NODES, _NODES, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return bend * (drawn - drawn.mean((1, 2), keepdim=True))


def random_poses(poses: PosePart, count: int, seed: int) -> Tensor:
    """Draw poses: (count, 3, 3) in float64."""
    # Without a stretch, similarity: it consumes the same random numbers and gives the same bits as older versions.
    kind = "affine" if poses.max_stretch > 1 else "similarity"
    group = parse_continuous(f"{kind}+mirror" if poses.mirror else kind)
    return group.random(
        count,
        generator=torch.Generator().manual_seed(seed),
        max_angle=poses.max_angle,
        max_shift=poses.max_shift,
        max_scale=poses.max_scale,
        max_stretch=poses.max_stretch,
        dtype=torch.float64,
    )
