"""What the estimator takes: arrays, rows of pixels, pictures of different sizes, folders and files."""

import math
import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


def read_files(
    source: Any, memory: int | str | None, colour: Literal["auto", "grey", "rgb"] = "auto",
    shape: tuple[int, ...] | None = None,
) -> tuple[NDArray, list[str]]:  # fmt: skip
    """Images (n, h, w) or (n, h, w, 3) of a folder or of files, brought to a shape (h, w) if given, and their names."""
    from unpose.data import read_folder  # reading pictures needs packages that arrays do not

    # As in fit, images whose channels are nearly equal are grey, also beside coloured ones.
    found = read_folder(
        source, size=None if shape is None else (int(shape[0]), int(shape[1])), memory=memory,
        colour="grey" if colour == "grey" else "auto", min_images=1,
    )  # fmt: skip
    if found.rejected:
        name, reason = found.rejected[0]
        raise ValueError(
            f"{len(found.rejected)} of the files cannot be read, the first is {name}: {reason}. Results are in the "
            "order of the files, so none is left out; unpose.read_folder(...) lists them and reads the others"
        )
    images = found.images
    return np.repeat(images[..., None], 3, axis=-1) if colour == "rgb" and images.ndim == 3 else images, found.names


def is_image_set(X: Any) -> bool:
    """Whether this is an :class:`unpose.data.ImageSet`."""
    if not hasattr(X, "images"):
        return False
    from unpose.data import ImageSet  # as above

    return isinstance(X, ImageSet)


def are_files(X: Any) -> bool:
    """Whether these are the name of a file or folder, or a list, array or column of a data frame of such names."""
    is_column = len(getattr(X, "shape", ())) == 1 and X.shape[0] > 0
    names = X if isinstance(X, list | tuple) else np.asarray(X[:1]) if is_column else [X]
    return len(names) > 0 and isinstance(names[0], str | os.PathLike)


def count_axes(X: Any) -> int:
    """Number of axes of an array, data frame, list of rows, or list of images that may differ in size."""
    if hasattr(X, "shape"):
        return len(X.shape)
    if isinstance(X, list | tuple) and len(X) and hasattr(X[0], "shape"):
        return 1 + len(X[0].shape)
    rows = np.asarray(X)  # what only says how it becomes an array has no length
    if rows.ndim == 0 or len(rows) == 0:
        given = "an empty list" if rows.ndim else f"an object of type {type(X).__name__}"
        raise ValueError(
            f"give at least one image: an array, a list of pictures, a folder or the names of files; got {given}"
        )
    return rows.ndim


def as_images(rows: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Rows (n, pixels) as images (n, *shape)."""
    if len(shape) not in (2, 3) or any(int(side) < 1 for side in shape) or math.prod(shape) != rows.shape[1]:
        raise ValueError(
            f"image_shape must be (h, w) or (h, w, c) with {rows.shape[1]} entries, as X has columns, got {shape}"
        )
    return rows.reshape(-1, *shape)


def is_channels_first(X: Any, given: bool | None) -> bool:
    """Whether images with four axes are (n, c, h, w), decided by their shape if it is not given."""
    if given is not None:
        return given
    shape = X.shape if hasattr(X, "shape") else (len(X), *np.shape(X[0]))
    return shape[1] in (1, 3, 4) and shape[3] > 4


def check_n_clusters(n_clusters: Any, n: int, n_different: int) -> None:
    """Refuse a number of clusters that n images, of which ``n_different`` count, cannot have."""
    if n_clusters is None:
        return
    if not isinstance(n_clusters, int | np.integer) or n_clusters < 1:
        raise ValueError(f"n_clusters must be an integer of at least 1, or None, got {n_clusters!r}")
    if n_clusters > n_different:
        raise ValueError(
            f"n_clusters must be at most the number of images that differ and are not constant ({n_different} of "
            f"{n}), got {n_clusters}"
        )
