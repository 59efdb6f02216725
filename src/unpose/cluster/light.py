"""Remove the effects of light before images are compared: a background, brightness and contrast, or local contrast."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.compiled import worker_pool
from unpose.images import as_batch, pixel_grid, smooth

LIGHT_CONTRAST = {"ignore": "gain", "local": "gain", "keep": "none"}
"""Value of ``light`` -> changes of contrast that distances ignore; see :mod:`unpose.align.photometry`."""
_ITERATIONS = 30
_CHUNK_PIXELS = 2**19
"""Pixels that a thread processes at a time."""
_LOCAL_SIGMA = 1 / 16
"""Standard deviation of the window of local contrast, as a share of the shorter side."""
_LOCAL_FLOOR = 1.0
"""Its square, as a share of the variance of the whole image, is added to the local variance: flat parts stay flat."""
MIN_LOCAL_GAIN = 0.37
"""Local contrast is used, or recommended, if more mutual neighbours, relative to their number, are found with it."""
_SAMPLE = 250
_LARGEST = 1e15
"""Images with larger pixels are scaled: the sum of their squares would overflow in single precision."""


def evenly_spaced_rows(n: int, count: int = _SAMPLE) -> NDArray:
    """The rows of up to ``count`` of n images; by default of the 250 by which the light is judged."""
    return np.linspace(0, n - 1, min(n, count)).astype(np.int64)


def light_notes(light: str, gain: float) -> list[str]:
    """What a reader must know about the light, given what was asked for and the gain of local contrast."""
    if gain <= MIN_LOCAL_GAIN:
        return []
    why = f"with local contrast {gain:.0%} more of the neighbours are mutual"
    if light == "auto":
        return [f"Light varies inside the images: {why}, so local contrast was used."]
    return [f'Light seems to vary inside the images: {why}. Try light "local".']


def normalise_light(images: Tensor, light: str) -> Tensor:
    """Prepare images (n, c, h, w) for comparison and averaging.

    "keep" returns them unchanged, but for :func:`bounded`. "ignore" subtracts the plane fitted to the border and scales
    all images to the same norm, the median of all norms, so that a bright photograph has no more weight than a dark
    one. "local" then also divides out contrast that varies inside the image.
    """
    if light not in LIGHT_CONTRAST:
        raise ValueError(f"light must be one of {', '.join(map(repr, LIGHT_CONTRAST))}, got {light!r}")
    images = bounded(images)
    if light == "keep":
        return images
    flat = without_background(images)
    norm = torch.linalg.vector_norm(flat.flatten(1), dim=1)
    # Constant images become zero instead of amplified rounding errors.
    has_signal = norm > 1e-5 * torch.linalg.vector_norm(images.flatten(1), dim=1).clamp(min=1e-12)
    if not has_signal.any():
        return torch.zeros_like(flat)
    if light == "local":
        flat = torch.cat([local_contrast(part) for part in flat.split(_chunk(flat))])
        norm = torch.linalg.vector_norm(flat.flatten(1), dim=1)
    factor = torch.where(has_signal, norm[has_signal].median() / norm.clamp(min=1e-30), 0.0)
    return flat.mul_(factor[:, None, None, None])


def bounded(images: Tensor) -> Tensor:
    """Scale each image (n, c, h, w) with pixels beyond 1e15 to a largest of 1; the others stay as they are.

    One such image would otherwise decide what counts as rounding in all others, and overflow wherever it is squared.
    """
    flat = images.flatten(1)
    largest = torch.maximum(flat.amax(1), -flat.amin(1))
    if not (largest > _LARGEST).any():
        return images
    return images / torch.where(largest > _LARGEST, largest, 1.0)[:, None, None, None]


def constant_images(images: ArrayLike | Tensor, *, light: str = "ignore") -> NDArray:
    """Find the images that are constant once the effects of light are removed, and cannot be aligned.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, c) array
        Images.
    light : {"ignore", "local", "keep"}, default "ignore"
        What is removed first, as in :class:`InvariantClustering`.

    Returns
    -------
    (n,) array of bool
        True for constant images.

    Raises
    ------
    ValueError
        If all images are constant.

    Examples
    --------
    >>> import numpy as np
    >>> constant_images(np.stack([np.eye(9), np.full((9, 9), 0.5)])).tolist()
    [False, True]
    """
    shown = has_content(normalise_light(as_batch(images, dtype=torch.float32), light))
    check_content(shown)
    return ~shown


def has_content(images: Tensor) -> NDArray:
    """Which of the images (n, c, h, w) of :func:`normalise_light` are not constant up to rounding: (n,) bool."""
    flat = images.flatten(1)
    return varies(flat.amin(1), flat.amax(1)).numpy()


def varies(low: Tensor, high: Tensor) -> Tensor:
    """Whether images with these smallest and largest pixels, (n,) each, are not constant up to rounding: (n,) bool.

    Pixels are rounded in proportion to the largest of the image, or, where a background was subtracted, to what it was
    before; for that stands the median of the other images, on which one with huge pixels has no influence.
    """
    largest = torch.maximum(high, -low)
    shown = largest[largest > 0]
    typical = shown.median() if len(shown) else torch.zeros(()).to(largest)
    return high - low > 1e-6 * torch.maximum(largest, typical).clamp(min=1e-12)


def check_content(shown: NDArray) -> None:
    """Raise a ValueError if no entry of :func:`has_content` is true."""
    if not shown.any():
        raise ValueError(f"none of the {len(shown)} images shows anything: they are all constant")


def _chunk(images: Tensor) -> int:
    """How many of the images (n, c, h, w) are processed at a time."""
    return max(1, _CHUNK_PIXELS // images[0].numel())


def without_background(images: Tensor) -> Tensor:
    """Subtract from images (n, c, h, w) the plane that fits their border.

    The plane is fitted to the outer ring, a sixteenth of the image wide, by least absolute deviations (iteratively
    reweighted least squares), so that an object that touches the border does not tilt it. Every thread takes images
    of its own: torch's threads share each of the many small products, and mostly wait for each other.
    """
    with worker_pool(torch.get_num_threads()) as threads:
        size = _chunk(images)
        flat = torch.empty(images.shape, dtype=images.dtype, device=images.device)
        for part, made in zip(flat.split(size), threads.map(_without_plane, images.split(size)), strict=True):
            part.copy_(made)
        return flat


def _without_plane(images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    grid = pixel_grid((height, width), torch.float64, images.device)
    scaled = grid / max(height, width)
    plane = torch.cat([torch.ones_like(scaled[..., :1]), scaled], dim=-1).flatten(0, 1)  # (h * w, 3)
    edge = max(1, min(height, width) // 16)
    ring = torch.ones(height, width, dtype=torch.bool, device=images.device)
    ring[edge : height - edge, edge : width - edge] = False
    ring_plane = plane[ring.flatten()]  # (r, 3)
    products = (ring_plane[:, :, None] * ring_plane[:, None]).flatten(1)  # (r, 9)
    values = images.double()[..., ring].flatten(0, 1)  # (n * c, r)
    # The second term is for constant borders, where weights would fall below the regularisation of the fit.
    slack = 1e-4 * (values.amax(-1, keepdim=True) - values.amin(-1, keepdim=True)) + 1e-12
    slack = slack + 1e-6 * values.abs().amax(-1, keepdim=True)
    weights, scratch = torch.ones_like(values), torch.empty_like(values)  # new arrays would take most of the time
    for _ in range(_ITERATIONS):
        normal = (weights @ products).unflatten(-1, (3, 3)) + 1e-9 * torch.eye(3).to(ring_plane)  # (n * c, 3, 3)
        fit = torch.linalg.solve(normal, torch.mul(weights, values, out=scratch) @ ring_plane)  # (n * c, 3)
        deviation = torch.matmul(fit, ring_plane.T, out=scratch).sub_(values).abs_()
        torch.div(slack, torch.maximum(deviation, slack, out=scratch), out=weights)
    background = (fit @ plane.T).view(images.shape)
    return (images.double() - background).to(images)


def local_contrast(images: Tensor) -> Tensor:
    """Subtract the local mean of images (n, c, h, w) and divide by the local standard deviation.

    Both are Gaussian averages about each pixel, inside the frame. All channels share the standard deviation, so that
    colours keep their relation.
    """
    height, width = images.shape[-2:]
    sigma = _LOCAL_SIGMA * min(height, width)
    inside = smooth(torch.ones(1, 1, height, width).to(images), sigma)
    difference = images - smooth(images, sigma) / inside
    energy = difference.square().mean(1, keepdim=True)
    floor = _LOCAL_FLOOR**2 * energy.mean((2, 3), keepdim=True) + 1e-30
    return difference / (smooth(energy, sigma) / inside + floor).sqrt()
