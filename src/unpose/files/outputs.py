"""Files that the user names: written completely or not at all, through the user's own links and into pipes."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from numpy.typing import NDArray
from PIL import Image

from unpose.files.folder import Folder, png


def write_image(path: str | os.PathLike[str], picture: Image.Image | NDArray, *, software: str | None = None) -> Path:
    """Write a PNG file. Missing folders are created.

    Parameters
    ----------
    path : str or path
        The file to write.
    picture : PIL.Image.Image or ndarray
        A Pillow image, or floats in [0, 1] of shape (h, w) or (h, w, 3).
    software : str, optional
        The name of the program, stored in the file's metadata.

    Returns
    -------
    Path
        The path that was written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_image(folder + "/grey.png", np.full((5, 7), 0.5)).name
    'grey.png'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with output(target, durable=False) as stream:
        stream.write(png(picture, software))
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file in UTF-8.

    Parameters
    ----------
    path : str or path
        The file to write; its folder must exist.
    text : str
        The content.

    Returns
    -------
    Path
        The path that was written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(folder + "/notes.txt", "turned by 90°").read_text(encoding="utf-8")
    'turned by 90°'
    """
    with output(path) as stream:
        stream.write(text.encode())
    return Path(path)


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """Write bytes chunk by chunk. Missing folders are created; if the iterable raises, no file is left.

    Parameters
    ----------
    path : str or path
        The file to write.
    chunks : iterable of bytes
        The content.

    Returns
    -------
    Path
        The path that was written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_chunks(folder + "/a/b.bin", [b"one ", b"two"]).read_bytes()
    b'one two'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with output(target) as stream:
        for chunk in chunks:
            stream.write(chunk)
    return target


@contextmanager
def output(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a stream, and give the file its name when the block ends without an error.

    A symbolic link stays, and the file it points to is replaced. Devices and pipes cannot be replaced, so the content
    is copied into them.

    Parameters
    ----------
    path : str or path
        The file to write; its folder must exist.
    durable : bool, default True
        Wait until the file is on the disk, so that a power cut leaves the old file or the new one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with output(folder + "/a.txt") as stream:
    ...         _ = stream.write(b"whole")
    ...     Path(folder, "a.txt").read_text()
    'whole'
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        # The path is resolved only here: /dev/stdout may lead to a pipe, which has no path.
        target = Path(os.path.realpath(path))
        with Folder(target.parent, durable=durable) as folder, folder.write(target.name) as stream:
            yield stream
    else:
        with tempfile.TemporaryFile() as held:
            yield held
            held.seek(0)
            with open(path, "wb") as stream:
                shutil.copyfileobj(held, stream)


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a file, or raise ValueError if it is larger than a limit.

    Parameters
    ----------
    path : str or path
        The file to read.
    max_bytes : int
        The limit.

    Returns
    -------
    bytes
        The content.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_file(write_text(folder + "/a.txt", "abc"), max_bytes=10)
    b'abc'
    """
    source = Path(path)
    if (size := source.stat().st_size) > max_bytes:
        raise ValueError(f"{source} has {size} bytes, more than the limit of {max_bytes}")
    return source.read_bytes()
