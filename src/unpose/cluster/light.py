"""What the light does to a picture and a shape does not: a background that rises to one side, brightness, contrast."""

import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.images import pixel_grid

CONTRAST = {"ignore": "gain", "keep": "none"}
"""What distances are blind to once images are prepared; see :mod:`unpose.align.photometry`."""
_ROUNDS = 30
_AT_ONCE = 2**21
"""Pixels worked on at a time."""


def prepared(images: Tensor, light: str) -> Tensor:
    """Images (n, c, h, w) as they are compared and averaged.

    With light "keep" as they are. With "ignore" less the plane that their border follows and scaled to one strength,
    the median of all: then a brighter photograph weighs no more than a darker one.
    """
    if light not in CONTRAST:
        raise ValueError(f"light must be 'ignore' or 'keep', got {light!r}")
    if light == "keep":
        return images
    chunk = max(1, _AT_ONCE // images[0].numel())
    flat = torch.cat([without_background(part) for part in images.split(chunk)])
    strength = torch.linalg.vector_norm(flat.flatten(1), dim=1)
    # An image of nothing is left at nothing.
    seen = strength > 1e-5 * torch.linalg.vector_norm(images.flatten(1), dim=1).clamp(min=1e-12)
    if not seen.any():
        return torch.zeros_like(flat)
    factor = torch.where(seen, strength[seen].median() / strength.clamp(min=1e-30), 0.0)
    return flat * factor[:, None, None, None]


def show_something(work: Tensor) -> NDArray:
    """Which of the :func:`prepared` images are not constant, but for rounding: (n, c, h, w) -> (n,) bool."""
    flat = work.flatten(1)
    return (flat.amax(1) - flat.amin(1) > 1e-6 * flat.abs().amax().clamp(min=1e-12)).numpy()


def check_shown(shown: NDArray) -> None:
    """Raise a ``ValueError`` where :func:`show_something` says that no image does."""
    if not shown.any():
        raise ValueError(f"none of the {len(shown)} images shows anything: they are all constant")


def without_background(images: Tensor) -> Tensor:
    """Images (n, c, h, w) less the plane that their border follows.

    The plane is fitted to the outer ring, a sixteenth of the frame wide, by least absolute deviations: an object that
    reaches the border in places does not tilt it. Where the background is zero nothing changes.
    """
    height, width = images.shape[-2:]
    grid = pixel_grid((height, width), torch.float64, images.device)
    scaled = grid / max(height, width)
    plane = torch.cat([torch.ones_like(scaled[..., :1]), scaled], dim=-1).flatten(0, 1)  # (h * w, 3)
    edge = max(1, min(height, width) // 16)
    ring = torch.ones(height, width, dtype=torch.bool, device=images.device)
    ring[edge : height - edge, edge : width - edge] = False
    there = plane[ring.flatten()]  # (r, 3)
    values = images.double()[..., ring]  # (n, c, r)
    slack = 1e-4 * (values.amax(-1, keepdim=True) - values.amin(-1, keepdim=True)) + 1e-12
    weights = torch.ones_like(values)
    for _ in range(_ROUNDS):
        normal = torch.einsum("ncr,ri,rj->ncij", weights, there, there) + 1e-9 * torch.eye(3).to(there)
        fit = torch.linalg.solve(normal, torch.einsum("ncr,ri->nci", weights * values, there))  # (n, c, 3)
        deviation = (values - fit @ there.T).abs()
        weights = slack / torch.maximum(deviation, slack)
    background = (fit @ plane.T).unflatten(-1, (height, width))
    return (images.double() - background).to(images)
