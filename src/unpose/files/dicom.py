"""Reads DICOM files without compression, with pydicom.

Grey values are shown through the window that the file declares, clipped to [0, 1]; without a window the full scale of
the stored bits becomes [0, 1]. MONOCHROME1, in which 0 is white, is inverted. Every frame is an image.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.files.frames import UnreadableError, import_optional
from unpose.files.stacks import StoredArray

_PIXEL_BYTES = 24
"""Memory per sample beside those stored, while values are scaled in double precision."""


@contextmanager
def open_dicom(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open the frames of a DICOM file: (h, w), (h, w, 3), (n, h, w) or (n, h, w, 3)."""
    if key is not None:
        raise UnreadableError(f"is a DICOM file; it holds no {key!r}")
    pydicom = import_optional("pydicom", "dicom", "a DICOM file")
    # The syntax first: pydicom would decompress the whole file of a deflated one.
    syntax = pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID")
    if syntax is None or syntax.is_compressed or syntax.is_deflated:
        raise UnreadableError("is a compressed DICOM file; decompress it, for example with gdcmconv --raw")
    file = pydicom.dcmread(path, defer_size=2**16)
    if "PixelData" not in file:
        raise UnreadableError("is a DICOM file without pixels")
    frames, colours = int(file.get("NumberOfFrames", 1) or 1), int(file.SamplesPerPixel)
    if colours not in (1, 3) or file.PhotometricInterpretation == "PALETTE COLOR":
        raise UnreadableError("is a DICOM file that is neither grey nor RGB; convert it to PNG or TIFF")
    size = (file.Rows, file.Columns, 3) if colours == 3 else (file.Rows, file.Columns)
    shape = (frames, *size) if frames > 1 else size
    declared = prod(int(length) for length in shape) * int(file.BitsAllocated) // 8
    if declared > path.stat().st_size:
        raise UnreadableError(f"is cut short: declares {declared:,} bytes of pixels")

    def read(start: int, stop: int) -> NDArray:
        stored = file.pixel_array
        return _scaled(stored if frames == 1 else stored[start:stop], file)

    yield StoredArray(
        shape, np.dtype(np.float64), read, chunk_length=frames if frames > 1 else 1, is_indivisible=True,
        chunk_bytes=_PIXEL_BYTES * declared,
    )  # fmt: skip


def _scaled(stored: NDArray, file: Any) -> NDArray:
    """Values of the file as float32 in [0, 1]."""
    bits, is_signed = int(file.BitsStored), bool(file.PixelRepresentation)
    centre, width = (_first(file.get(name)) for name in ("WindowCenter", "WindowWidth"))
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if is_signed else (0.0, 2.0**bits - 1)
    values = stored.astype(np.float64)
    if file.SamplesPerPixel == 1 and centre is not None and width is not None and width > 0:
        values = values * float(file.get("RescaleSlope", 1)) + float(file.get("RescaleIntercept", 0))
        low, high = centre - width / 2, centre + width / 2
    values = np.clip((values - low) / (high - low), 0, 1)
    return (1 - values if file.PhotometricInterpretation == "MONOCHROME1" else values).astype(np.float32)


def _first(value: Any) -> float | None:
    """The first of several windows, or the only one."""
    return None if value is None else float(value if not hasattr(value, "__len__") else value[0])
