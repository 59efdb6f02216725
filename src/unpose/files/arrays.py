"""Reads whole arrays of public data sets, as stored: NumPy, HDF5, IDX, text tables and fixed-size records.

Nothing is unpickled or unpacked to disk. Declared sizes are checked against the limit and the file before anything is
allocated. Every error becomes an :class:`~unpose.files.UnreadableError` that names the file.
"""

import gzip
import tarfile
import zipfile
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from unpose.files.formats import open_array
from unpose.files.frames import UnreadableError, as_unreadable_error

__all__ = ["array_names", "first_existing", "is_folder", "read_array", "read_idx", "read_records", "read_table"]

MAX_ARRAY_BYTES = 16 * 2**30
"""The largest public data set read here has 7 GiB."""

_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_MAX_LINE = 2**20


def first_existing(folders: list[Path], names: tuple[str, ...]) -> Path | None:
    """The first file that exists: folder by folder, and in each folder name by name."""
    return next((found for folder in folders for name in names if (found := folder / name).is_file()), None)


def is_folder(path: Path) -> bool:
    """Whether a path is an existing folder."""
    return path.is_dir()


def array_names(path: Path) -> list[str]:
    """Names of the arrays of an ``.npz`` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except Exception as error:
        raise _with_path(path, error) from error


def read_array(path: Path, key: str) -> NDArray:
    """Read one named array of an ``.npz`` or HDF5 file, whole and as stored."""
    try:
        opener = open_array(path, key)
        if opener is None:
            raise UnreadableError("is neither a NumPy archive nor HDF5")
        with opener as array:
            _check_size(array.shape, array.dtype.itemsize)
            return np.asarray(array.read(0, array.shape[0]))
    except Exception as error:  # decoders raise any exception
        raise _with_path(path, error) from error


def read_idx(path: Path) -> NDArray:
    """Read an IDX file, plain or gzipped.

    The format of MNIST: two zero bytes, a type, the number of axes, their lengths (32 bits, big-endian), the numbers.
    """
    try:
        with path.open("rb") as raw:
            is_gzipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzipped else path.open("rb") as stream:
            return _parse_idx(stream)
    except Exception as error:
        raise _with_path(path, error) from error


def _parse_idx(stream: "IO[bytes] | gzip.GzipFile") -> NDArray:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES or not 1 <= start[3] <= 4:
        raise UnreadableError("is not an IDX file")
    lengths = stream.read(4 * start[3])
    if len(lengths) < 4 * start[3]:
        raise UnreadableError("is cut short")
    shape = tuple(int.from_bytes(lengths[at : at + 4], "big") for at in range(0, len(lengths), 4))
    dtype = np.dtype(_IDX_TYPES[start[2]])
    _check_size(shape, dtype.itemsize)
    content = stream.read(prod(shape) * dtype.itemsize + 1)
    if len(content) != prod(shape) * dtype.itemsize:
        raise UnreadableError(f"declares {prod(shape) * dtype.itemsize:,} bytes of numbers and has fewer or more")
    return np.frombuffer(content, dtype).reshape(shape)


def read_table(path: Path, n_columns: int) -> NDArray:
    """Read a text file with one row of numbers per line, separated by blanks: (rows, n_columns) float32."""
    try:
        with path.open(encoding="ascii") as stream:
            if len(stream.readline(_MAX_LINE).split()) != n_columns:
                raise UnreadableError(f"is not a table of {n_columns} columns")
            stream.seek(0)
            return np.loadtxt(stream, dtype=np.float32, ndmin=2)
    except Exception as error:
        raise _with_path(path, error) from error


def read_records(path: Path, size: int, member: str | None = None) -> NDArray:
    """Read fixed-size records of ``size`` bytes from a file, or from one member of a tar archive: (records, size)."""
    try:
        if member is None:
            return _as_records(path.read_bytes(), size)
        with tarfile.open(path) as archive:
            stream = archive.extractfile(member)
            if stream is None:
                raise UnreadableError(f"holds no file {member!r}")
            return _as_records(stream.read(MAX_ARRAY_BYTES), size)
    except Exception as error:
        raise _with_path(path, error) from error


def _as_records(content: bytes, size: int) -> NDArray:
    if not content or len(content) % size:
        raise UnreadableError(f"has {len(content):,} bytes, which is not a multiple of the record size {size:,}")
    return np.frombuffer(content, np.uint8).reshape(-1, size)


def _check_size(shape: tuple[int, ...], itemsize: int) -> None:
    if not shape or prod(shape) * itemsize > MAX_ARRAY_BYTES:
        raise UnreadableError(f"declares an array of shape {shape}, a scalar or more than {MAX_ARRAY_BYTES >> 30} GiB")


def _with_path(path: Path, error: Exception) -> UnreadableError:
    return UnreadableError(f"{path} {as_unreadable_error(error)}")
