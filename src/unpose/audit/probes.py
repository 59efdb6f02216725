"""Synthetic images for audits, and inputs for a model of which nothing is known: the shape is found by calling it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from unpose.audit.actions import Kind
from unpose.audit.calls import first_line
from unpose.audit.elements import order_of
from unpose.audit.outputs import outputs_of
from unpose.audit.precision import model_device, model_type
from unpose.groups import Group
from unpose.images import smooth

_SIZES = (12, 13, 16, 24, 28, 32, 64, 96, 128, 224)
_CHANNELS = (3, 1, 2, 4, 8, 16)


def smooth_noise(n: int, channels: int, frame: tuple[int, int], *, sigma: float = 1.5, random_state: int = 0) -> Tensor:
    """Generate random smooth images without any symmetry, for audits without images of one's own.

    They are white noise, smoothed by a Gaussian, scaled to mean 1/2 and standard deviation 1/4, and clipped to [0, 1].

    Parameters
    ----------
    n, channels : int
        Number of images and of their channels.
    frame : (height, width)
        Size in pixels.
    sigma : float, default 1.5
        Standard deviation of the Gaussian in pixels.
    random_state : int, default 0
        Seed.

    Returns
    -------
    (n, channels, height, width) tensor, float32 in [0, 1]

    Examples
    --------
    >>> smooth_noise(2, 3, (8, 9)).shape
    torch.Size([2, 3, 8, 9])
    """
    if min(n, channels, *frame) < 1:
        raise ValueError(f"smooth_noise needs at least one image, channel and pixel, got {(n, channels, *frame)}")
    generator = torch.Generator().manual_seed(int(random_state))
    noise = smooth(torch.randn(n, channels, *frame, generator=generator), sigma)
    noise = noise - noise.mean((-2, -1), keepdim=True)
    spread = noise.square().mean((-2, -1), keepdim=True).sqrt().clamp(min=torch.finfo(noise.dtype).tiny)
    return (0.5 + 0.25 * noise / spread).clamp(0, 1)


def probe_images(channels: int, frame: tuple[int, int], random_state: int = 0) -> Tensor:
    """Four images: two of smooth noise, white noise, and noise in four grey levels, which has many equal pixels.

    Parameters
    ----------
    channels : int
        Number of channels.
    frame : (height, width)
        Size in pixels.
    random_state : int, default 0
        Seed.

    Returns
    -------
    (4, channels, height, width) tensor, float32 in [0, 1]

    Examples
    --------
    >>> probe_images(3, (8, 9)).shape
    torch.Size([4, 3, 8, 9])
    """
    noise = smooth_noise(3, channels, frame, random_state=random_state)
    white = torch.rand(1, channels, *frame, generator=torch.Generator().manual_seed(int(random_state) + 1))
    return torch.cat([noise[:2], white, (noise[2:] * 4).floor().clamp(max=3) / 3])


def infer_inputs(model: Callable[[Tensor], Any], group: Group, takes: Kind, random_state: int = 0) -> Tensor:
    """Find inputs that a model takes, by calling it: four images, or four maps with a group axis.

    Channels and sizes are guessed from the attributes and parameters of its modules. ``takes`` is the kind of the
    input; its group axis has one entry per element.
    """
    order = order_of(group)
    last = "it takes none of the shapes that were tried"
    for channels, size in _shapes(model):
        images = probe_images(channels * (order if takes.group_axis is not None else 1), (size, size), random_state)
        if takes.group_axis is not None:
            images = images.unflatten(1, (channels, order))
            images = images.movedim(2, takes.group_axis) if takes.group_axis not in (2, -3) else images
            images = images if takes.image else images.mean((-2, -1))
        inputs = images.to(model_device(model, images), model_type(model, images))
        try:
            with torch.no_grad():
                outputs_of(model(inputs.clone()), len(inputs))
        except Exception as error:  # anything can be raised for a shape that does not fit
            last = first_line(error)
            continue
        return inputs
    raise ValueError(f"no input was found that the model takes ({last}); give images of the right shape")


def _shapes(model: object) -> Iterator[tuple[int, int]]:
    """Channels and sizes to try, likely ones first."""
    channels, sizes = _hints(model)
    wanted = [*dict.fromkeys([*channels, *_CHANNELS])]
    likely = [*dict.fromkeys([*_SIZES[:2], *sizes, *_SIZES])]
    for first in (wanted[:3], wanted[3:]):
        for size in likely:
            for count in first:
                yield count, size


def _hints(model: object) -> tuple[list[int], list[int]]:
    """Numbers of channels and sizes that the attributes and parameters of a module speak of."""
    if not isinstance(model, nn.Module):
        return [], []
    channels: list[int] = []
    sizes: list[int] = []
    for module in model.modules():
        for name in ("in_channels", "in_features", "num_features", "num_channels", "channels", "embed_dim"):
            value = getattr(module, name, None)
            if isinstance(value, int) and 0 < value <= 4096:
                channels.append(value)
        for name in ("image_size", "img_size", "size", "normalized_shape"):
            value = getattr(module, name, None)
            numbers = value if isinstance(value, tuple | list) else [value]
            sizes += [each for each in numbers[-2:] if isinstance(each, int) and 3 < each <= 512]
    first = channels[:1]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2] > 7:
            sizes.append(tensor.shape[-1])
        if tensor.ndim == 2 and "weight" in name:
            for count in {*first, 1, 3}:
                side = math.isqrt(tensor.shape[1] // count)
                sizes += [side] * (side > 3 and side * side * count == tensor.shape[1])
        if tensor.ndim >= 2:  # position codes (1, tokens, c)
            sizes += [side for each in tensor.shape[:-1] if (side := math.isqrt(each)) > 3 and side * side == each]
        if tensor.ndim >= 3 and not first:
            channels.append(int(tensor.shape[1]))
    return [*dict.fromkeys([*first, *channels])][:6], [*dict.fromkeys(sizes)][:6]
