"""Reads FITS images with astropy, and stretches their brightness as astronomers do to look at them.

The brightness of stars and galaxies spans many powers of ten. Each image is clipped to the 0.25th and 99.75th
percentiles of its pixels, scaled to [0, 1], and stretched by ``asinh(10 x) / asinh(10)`` (Lupton et al. 1999), which is
linear for faint pixels and logarithmic for bright ones. Missing pixels (NaN) become 0. The first row of a FITS image is
at the bottom, so rows are reversed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.files.frames import UnreadableError, import_optional
from unpose.files.stacks import StoredArray

_CLIPPED = (0.25, 99.75)
_SOFTENING = np.float32(0.1)
_SAMPLED = 10**6
"""Percentiles are those of about this many pixels on a regular grid."""


@contextmanager
def open_fits(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open the first image of a FITS file, or the one with this name; an array (n, h, w) is n images."""
    fits = import_optional("astropy.io.fits", "fits", "a FITS file")
    with fits.open(path, mode="readonly", memmap=False, lazy_load_hdus=True) as units:
        images = [
            unit
            for unit in units
            if unit.is_image and len(unit.shape) >= 2 and min(unit.shape[-2:]) > 4 and key in (None, unit.name)
        ]
        if not images:
            raise UnreadableError("holds no image" if key is None else f"holds no image {key!r}")
        unit, shape = images[0], images[0].shape
        declared = prod(shape) * abs(unit.header["BITPIX"]) // 8
        if not isinstance(unit, fits.CompImageHDU) and declared > path.stat().st_size:
            raise UnreadableError(f"is cut short: declares {declared:,} bytes of pixels")

        def read(start: int, stop: int) -> NDArray:
            stored = np.array(unit.section[start:stop], dtype=np.float32)
            for image in stored.reshape(-1, *stored.shape[-2:]):
                _stretch(image)
            return stored[..., ::-1, :]

        # While one image is read, it is also in memory as stored, in at most 8 bytes a pixel.
        as_stored = 8 * prod(shape[-2:])
        yield StoredArray(
            shape, np.dtype(np.float32), read, chunk_bytes=as_stored, note="brightness stretched by asinh"
        )


def _stretch(image: NDArray) -> None:
    """Scale and stretch the brightness of an image (h, w) to [0, 1], in place."""
    step = max(1, int((image.size / _SAMPLED) ** 0.5))
    sample = image[::step, ::step]
    sample = sample[np.isfinite(sample)]
    low, high = np.percentile(sample, _CLIPPED).astype(np.float32) if sample.size else (0.0, 1.0)
    image -= low
    image /= high - low or 1
    np.nan_to_num(image, copy=False, nan=0.0)
    np.clip(image, 0, 1, out=image)
    np.arcsinh(image / _SOFTENING, out=image)
    image /= np.arcsinh(1 / _SOFTENING)
