"""Pictures to and from the disk, each written whole or not at all."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def write_image(path: str | os.PathLike[str], picture: Image.Image | NDArray) -> Path:
    """Write a picture as PNG: a Pillow image, or floats in [0, 1] of shape (h, w) or (h, w, 3)."""
    if not isinstance(picture, Image.Image):
        picture = Image.fromarray((np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8))
    target = Path(path)
    with _whole_file(target) as temporary:
        picture.save(temporary, format="PNG", optimize=True)
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file in UTF-8."""
    target = Path(path)
    with _whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """Write bytes as they come; what raises on the way leaves no file. Folders on the way are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _whole_file(target) as temporary, temporary.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
    return target


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file, if there are at most so many."""
    source = Path(path)
    if (size := source.stat().st_size) > most:
        raise ValueError(f"{source} has {size} bytes, more than the {most} that are read")
    return source.read_bytes()


class _whole_file:
    """A temporary file beside the target that takes its place only when everything is written."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self._target.parent, prefix=f".{self._target.name}.", suffix=".tmp")
        os.close(handle)
        self._temporary = Path(name)
        return self._temporary

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            os.chmod(self._temporary, 0o644)
            os.replace(self._temporary, self._target)
        else:
            self._temporary.unlink(missing_ok=True)
