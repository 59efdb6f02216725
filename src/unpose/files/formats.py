"""Reads any supported file: chooses the reader by the file's content, never by its name.

To add a format, write a reader like :mod:`unpose.files.pictures` (images) or the openers in
:mod:`unpose.files.stacks` (arrays), and add its first bytes here: to :data:`_ARRAY_FORMATS`, or to
:func:`read_header` and :func:`read_frames`.

Reading takes two steps, so that nothing large is done before it is known to fit: :func:`read_header` reads what a file
declares, :func:`read_frames` its pixels. Whatever a decoder raises becomes an :class:`UnreadableError` of one line.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock

from numpy.typing import NDArray
from PIL import Image

from unpose.files import dicom, fits, pictures, stacks, tiff, zarr
from unpose.files.frames import PIXEL_LIMIT, Frame, Header, UnreadableError, as_unreadable_error

__all__ = ["Header", "as_unreadable_error", "decoder_limits", "read_frames", "read_grey", "read_header"]

_ARRAY_FORMATS = (
    (0, (b"\x93NUMPY",), stacks.open_npy),
    (0, (b"PK\x03\x04", b"PK\x05\x06"), stacks.open_npz),
    (0, (b"\x89HDF\r\n\x1a\n",), stacks.open_hdf5),
    (0, (b"SIMPLE  =",), fits.open_fits),
    (128, (b"DICM",), dicom.open_dicom),
    (208, (b"MAP ", b"MAP\0"), stacks.open_mrc),
)
"""Offset of a signature in the file, the signatures of a format, and its opener."""

_TO_CONVERT = {
    b"\xda\xce\xbe\x0a": "an ND2 file (Nikon)",
    b"ZISRAWFILE": "a CZI file (Zeiss)",
}
"""First bytes of microscope formats that are recognised and not read."""

_ARCHIVES = (b"7z\xbc\xaf", b"Rar!")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip, bzip2, xz and zstd, which compress one file, perhaps an archive."""


def read_header(path: Path, side: int, key: str | None = None) -> Header:
    """Read what a file, or the folder of a Zarr array, declares: the sizes of its frames and what reading it costs.

    ``side`` is the largest that :func:`read_frames` will be given; larger images are shrunk and then cost less. ``key``
    names the array to read from a file that holds several. An :class:`UnreadableError` says what is wrong with a file.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/stack.npy", np.zeros((2, 31, 17)))
    ...     read_header(Path(folder) / "stack.npy", side=64).sizes
    [(31, 17), (31, 17)]
    """
    try:
        opener = open_array(path, key)
        if opener is None:
            if key is not None:
                raise UnreadableError(f"is an image file, which holds no array {key!r}")
            return tiff.read_header(path, side) if _is_tiff(path) else pictures.read_header(path, side)
        with opener as array:
            return stacks.header(array)
    except Exception as error:  # decoders raise any exception; Ctrl-C is not an Exception and passes
        raise as_unreadable_error(error) from error


def read_frames(path: Path, side: int, wanted: set[int] | None = None, key: str | None = None) -> Iterator[Frame]:
    """Read the frames of a file: the index of each, and its pixels (h, w) or (h, w, 3) in float32 or its error.

    Frames much larger than ``side`` may be shrunk, but never below ``2 * side``. ``wanted`` are the indices of the
    frames to read, by default all, and ``key`` names the array to read from a file that holds several. If the whole
    file is damaged, an :class:`UnreadableError` is raised; frames that came before should then be discarded too.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/stack.npy", np.zeros((2, 31, 17)))
    ...     [(index, frame.shape) for index, frame in read_frames(Path(folder) / "stack.npy", side=64)]
    [(0, (31, 17)), (1, (31, 17))]
    """
    try:
        opener = open_array(path, key)
        if opener is not None:
            with opener as array:
                yield from stacks.read_frames(array, wanted)
        elif _is_tiff(path):
            yield from tiff.read_frames(path, side, wanted)
        else:
            yield from pictures.read_frames(path, side, wanted)
    except Exception as error:
        raise as_unreadable_error(error) from error


def read_grey(path: Path, side: int) -> tuple[NDArray | None, Header]:
    """Read a file that holds one image for a caller who needs no colour; pictures are opened only once.

    The frame of a JPEG file is its luminance in bytes, as the file stores it; for others it is what :func:`read_frames`
    gives. It is None for a file that holds several images.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (17, 31), "red").save(folder + "/red.jpg")
    ...     frame, header = read_grey(Path(folder) / "red.jpg", side=64)
    >>> frame.shape, frame.dtype, int(frame[0, 0]), header.sizes
    ((31, 17), dtype('uint8'), 76, [(31, 17)])
    """
    try:
        if open_array(path, None) is None and not _is_tiff(path):
            frame, header = pictures.read_grey(path, side)
        else:
            header = read_header(path, side)
            frame = next(read_frames(path, side))[1] if header.count == 1 else None
    except Exception as error:
        raise as_unreadable_error(error) from error
    if isinstance(frame, UnreadableError):
        raise frame
    return frame, header


def decoder_limits() -> AbstractContextManager[None]:
    """Context in which decoders' warnings are silent and Pillow accepts images of up to ``PIXEL_LIMIT`` pixels.

    Warnings and Pillow's limit belong to the process, so enter this once, around all threads that read. If several
    callers use it at a time, the first one sets the limits and the last one restores them.

    >>> with decoder_limits():
    ...     2 * Image.MAX_IMAGE_PIXELS == PIXEL_LIMIT
    True
    """
    return _DECODER_LIMITS


class _DecoderLimits:
    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._settings = _process_settings()
                self._settings.__enter__()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._settings.__exit__(None, None, None)


_DECODER_LIMITS = _DecoderLimits()


@contextmanager
def _process_settings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = PIXEL_LIMIT // 2  # Pillow warns above this limit and refuses above twice it
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def open_array(path: Path, key: str | None) -> AbstractContextManager[stacks.StoredArray] | None:
    """The opener of a file that holds an array; None for an image file."""
    if path.is_dir():
        return zarr.open_zarr(path, key)
    if not path.exists():
        raise UnreadableError("is a link that leads nowhere" if path.is_symlink() else "does not exist")
    if not path.is_file():
        raise UnreadableError("is not a regular file")
    start = _first_bytes(path)
    if not start:
        raise UnreadableError("is empty")
    for offset, signatures, opener in _ARRAY_FORMATS:
        if start[offset:].startswith(signatures):
            return opener(path, key)
    for signature, what in _TO_CONVERT.items():
        if start.startswith(signature):
            raise UnreadableError(
                f"is {what}; convert it to TIFF, for example with Bio-Formats in Fiji (File > Save As)"
            )
    if start.startswith(_ARCHIVES) or start[257:262] == b"ustar":
        raise UnreadableError("is an archive; archives are not unpacked")
    if start.startswith(_COMPRESSED):
        raise UnreadableError("is compressed; decompress it first")
    return None


def _is_tiff(path: Path) -> bool:
    return _first_bytes(path).startswith(tiff.MAGIC)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(512)
