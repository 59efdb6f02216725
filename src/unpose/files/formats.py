"""One file to frames: what kind it is, by its content and not by its name, and which reader takes it.

Two steps, so that nothing large is done before it is known to fit: :func:`header` reads what a file declares,
:func:`frames` its pixels. Whatever a decoder raises comes out as :class:`Unreadable` with one line to list.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock

from PIL import Image

from unpose.files import pictures, stacks
from unpose.files import zarr as zarr_arrays
from unpose.files.frames import PIXEL_LIMIT, Frame, Header, Unreadable, unreadable

_ARCHIVES = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!", b"\x28\xb5\x2f\xfd")


def header(path: Path, side: int, key: str | None = None) -> Header:
    """What a file declares: sizes of its frames and what reading it takes.

    Parameters
    ----------
    path : a file, or the folder of a Zarr array
    side : what :func:`frames` will be asked for, at most; larger pictures are made smaller and then cost less
    key : the array to read from a file that holds several

    Raises
    ------
    Unreadable
        For anything that is wrong with it.
    """
    try:
        window = open_window(path, key)
        if window is None:
            return pictures.probe(path, side, key)
        with window as opened:
            return stacks.probe(opened)
    except Exception as error:  # decoders raise whatever they like; Ctrl-C is no Exception and passes
        raise unreadable(error) from error


def frames(path: Path, side: int, wanted: set[int] | None = None, key: str | None = None) -> Iterator[Frame]:
    """The frames of a file with their numbers; in place of a bad one, its reason.

    Parameters
    ----------
    side : frames much larger than this may come out smaller than stored, never smaller than twice it
    wanted : numbers of the frames to read, all by default

    Raises
    ------
    Unreadable
        Where the whole file is damaged; frames that came before are not to be trusted either.
    """
    try:
        window = open_window(path, key)
        if window is None:
            yield from pictures.read(path, side, wanted)
        else:
            with window as opened:
                yield from stacks.read(opened, wanted)
    except Exception as error:
        raise unreadable(error) from error


def guarded() -> AbstractContextManager[None]:
    """Within it decoders' warnings are silent, and a picture may be as large as our own limit says.

    Warnings and Pillow's limit belong to the process, so this is entered once, around all threads that read. Where
    several do so at a time, the first sets them and the last puts them back.
    """
    return _GUARD


class _Guard:
    def __init__(self) -> None:
        self._lock, self._within = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._settings = _settings()
                self._settings.__enter__()
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                self._settings.__exit__(None, None, None)


_GUARD = _Guard()


@contextmanager
def _settings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = PIXEL_LIMIT // 2  # beyond it Pillow warns, beyond twice it refuses
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def open_window(path: Path, key: str | None) -> AbstractContextManager[stacks.Window] | None:
    """The opener for a file that holds an array; None for a picture."""
    if path.is_dir():
        return zarr_arrays.open_zarr(path, key)
    if not path.exists():
        raise Unreadable("does not exist")
    if not path.is_file():
        raise Unreadable("is not a regular file")
    with path.open("rb") as handle:
        start = handle.read(512)
    if not start:
        raise Unreadable("is empty")
    if start.startswith(b"\x93NUMPY"):
        return stacks.open_npy(path, key)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return stacks.open_npz(path, key)
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return stacks.open_hdf5(path, key)
    if start[208:212] in (b"MAP ", b"MAP\0"):
        return stacks.open_mrc(path, key)
    if start.startswith(_ARCHIVES) or start[257:262] == b"ustar":
        raise Unreadable("is an archive; archives are not unpacked")
    return None
