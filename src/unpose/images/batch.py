"""Converts the images that users pass to a checked ``(n, c, h, w)`` tensor, and back."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_FULL_SCALE = {torch.uint8: 255.0, torch.uint16: 65535.0, torch.bool: 1.0}


def as_batch(
    images: ArrayLike | Tensor | Sequence[NDArray], *, dtype: torch.dtype | None = None, channels_first: bool = False
) -> Tensor:
    """Check images and convert them to one floating-point tensor.

    Parameters
    ----------
    images : array_like, Tensor or sequence of arrays, shape (n, h, w) or (n, h, w, c)
        Floating-point images keep their values; ``uint8``, ``uint16`` and ``bool`` are divided by their full scale.
    dtype : torch.dtype, optional
        Type of the result. By default float64 stays float64 and everything else becomes float32.
    channels_first : bool, default False
        Whether 4-D images are (n, c, h, w), as in torch, instead of (n, h, w, c). Without it, a shape that can hardly
        be (n, h, w, c) is refused: second axis 1, 3 or 4 and last axis more than 4.

    Returns
    -------
    Tensor, shape (n, c, h, w)

    Raises
    ------
    ValueError
        For pixels that are not finite, sizes that differ, images without pixels, channels on the wrong axis, and
        integer types without a full scale. The message names the image.

    Examples
    --------
    >>> batch = as_batch(np.full((2, 5, 7, 3), 255, np.uint8))
    >>> batch.shape, batch.dtype, batch.max().item()
    (torch.Size([2, 3, 5, 7]), torch.float32, 1.0)
    """
    tensor = images if isinstance(images, Tensor) else _from_arrays(images)
    if tensor.ndim not in (3, 4):
        raise ValueError(
            f"images must be (n, h, w) or (n, h, w, channels), got shape {tuple(tensor.shape)}"
            + ("; one image is images[None]" if tensor.ndim == 2 else "")
        )
    if len(tensor) == 0:
        raise ValueError("no images: at least one is needed")
    if tensor.numel() == 0:
        raise ValueError(f"images have no pixels: shape {tuple(tensor.shape)}")
    if tensor.ndim == 4 and not channels_first and tensor.shape[1] in (1, 3, 4) and tensor.shape[-1] > 4:
        raise ValueError(
            f"images of shape {tuple(tensor.shape)} look like (n, channels, h, w), where (n, h, w, channels) is "
            "expected; give images.transpose(0, 2, 3, 1), or images.permute(0, 2, 3, 1) of a torch tensor"
        )
    if tensor.dtype in _FULL_SCALE:
        tensor = tensor.to(torch.float32) / _FULL_SCALE[tensor.dtype]
    elif not tensor.dtype.is_floating_point:
        raise ValueError(
            f"images of type {tensor.dtype} have no known full scale; give floats in [0, 1], uint8 or uint16"
        )
    elif tensor.dtype != torch.float64:
        tensor = tensor.to(torch.float32)
    if dtype is not None:
        tensor = tensor.to(dtype)
    finite = torch.isfinite(tensor).flatten(1).all(1)
    if not finite.all():
        bad = (~finite).nonzero().flatten().tolist()
        raise ValueError(f"image {bad[0]} has pixels that are NaN or infinite ({len(bad)} such images in all)")
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor if channels_first else tensor.movedim(-1, 1)


def from_batch(batch: Tensor, *, channels: bool) -> NDArray:
    """Convert a batch of images back to a NumPy array with the channels last.

    Parameters
    ----------
    batch : Tensor, shape (..., c, h, w)
    channels : bool
        Whether the result has a channel axis. Without one the first channel is returned.

    Returns
    -------
    ndarray, shape (..., h, w, c) or (..., h, w)

    Examples
    --------
    >>> from_batch(torch.zeros(2, 1, 5, 7), channels=False).shape
    (2, 5, 7)
    """
    array = batch.detach().cpu().movedim(-3, -1)
    return (array if channels else array[..., 0]).numpy()


def _from_arrays(images: ArrayLike | Sequence[NDArray]) -> Tensor:
    if isinstance(images, list | tuple):
        shapes = [np.shape(image) for image in images]
        for i, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ValueError(
                    f"images must have one size: image 0 is {shapes[0]}, image {i} is {shape}; "
                    "unpose.images.onto_one_canvas(images) scales them to one"
                )
        images = [image.detach().cpu().numpy() if isinstance(image, Tensor) else image for image in images]
    array = np.asarray(images)
    if array.dtype == object or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise ValueError(f"images must be numbers, got an array of type {array.dtype}")
    if np.iscomplexobj(array):
        raise ValueError("images must be real numbers, got complex ones")
    if array.dtype == np.longdouble and array.dtype != np.float64:
        array = array.astype(np.float64)  # torch has no wider type
    if array.dtype == np.float16 or array.dtype.byteorder not in ("=", "|"):
        array = array.astype(array.dtype.newbyteorder("=") if array.dtype != np.float16 else np.float32)
    array = np.ascontiguousarray(array)
    # torch has no read-only tensors and warns about read-only arrays, so these are copied.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
