"""Zarr arrays, from a folder, after their metadata was read here and found harmless.

A Zarr array names the codecs that unpack it, and one of them is pickle, which runs code. So the metadata of each array
is read as plain JSON first: only plain numbers, only codecs of a list, and only then is the array opened, by itself,
never through what its group says of it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unpose.files.frames import Unreadable, printable
from unpose.files.stacks import Window, choose, chunked, extra

MARKS = ("zarr.json", ".zarray", ".zgroup")
"""A folder that holds one of these is a Zarr array or group, not a folder of images."""

_CODECS = {
    "zlib", "gzip", "bz2", "lzma", "lz4", "zstd", "blosc", "shuffle", "delta", "crc32c", "bytes", "transpose",
    "sharding_indexed",
}  # fmt: skip
_LARGEST_METADATA = 2**20
_MOST_FOLDERS = 10_000

_Declared = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and chunks."""


@contextmanager
def open_zarr(path: Path, key: str | None) -> Iterator[Window]:
    """One array of a Zarr folder."""
    found = _arrays(path)
    chosen = choose({name: shape for name, (shape, _) in found.items()}, key)
    shape, chunks = found[chosen]
    zarr = extra("zarr", "formats", "a Zarr array")
    array = zarr.open_array(store=str(path / chosen), mode="r")
    if tuple(array.shape) != shape or array.dtype.kind not in "biuf":
        raise Unreadable("is not the array its metadata declares")
    yield chunked(shape, np.dtype(array.dtype), chunks, lambda first, last: np.asarray(array[first:last]))


def _arrays(root: Path) -> dict[str, _Declared]:
    """Name, shape and chunks of every array of numbers in a Zarr folder; the root itself is called ``.``."""
    found: dict[str, _Declared] = {}
    todo, seen, reasons = [root], 0, []
    while todo:
        folder = todo.pop()
        if (seen := seen + 1) > _MOST_FOLDERS:
            raise Unreadable(f"has more than {_MOST_FOLDERS:,} groups")
        try:
            declared = _declared(folder)
        except Unreadable as reason:
            reasons.append(reason)
            continue
        if declared is None:
            with os.scandir(folder) as entries:
                todo += sorted(
                    (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)), reverse=True
                )
        else:
            found[folder.relative_to(root).as_posix()] = declared
    if reasons and not found:
        raise reasons[0]
    return found


def _declared(folder: Path) -> _Declared | None:
    """Shape and chunks of the array in this folder, checked; None where it is a group."""
    if (folder / ".zarray").is_file():
        metadata = _json(folder / ".zarray")
        codecs = [*(metadata.get("filters") or []), metadata.get("compressor") or {"id": "bytes"}]
        _check_codecs([codec.get("id") for codec in codecs])
        kind = np.dtype(str(metadata["dtype"])).kind
        chunks = metadata["chunks"]
    elif (folder / "zarr.json").is_file():
        metadata = _json(folder / "zarr.json")
        if metadata.get("node_type") != "array":
            return None
        _check_codecs(_codec_names(metadata.get("codecs", [])))
        if metadata.get("storage_transformers"):
            raise Unreadable("is stored by transformers, which are not read")
        kind = np.dtype(str(metadata["data_type"])).kind
        chunks = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    else:
        return None
    if kind not in "biuf":
        raise Unreadable(f"holds values of type {printable(str(metadata.get('dtype', metadata.get('data_type'))))}")
    return _lengths(metadata["shape"]), _lengths(chunks)


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_METADATA:
        raise Unreadable(f"has metadata of more than {_LARGEST_METADATA:,} bytes")
    metadata = json.loads(path.read_bytes())
    if not isinstance(metadata, dict):
        raise Unreadable("has metadata that are no Zarr metadata")
    return metadata


def _codec_names(codecs: Any) -> list[Any]:
    names = []
    for codec in codecs:
        names.append(codec["name"] if isinstance(codec, dict) else codec)
        inside = codec.get("configuration", {}) if isinstance(codec, dict) else {}
        names += _codec_names(inside.get("codecs", [])) + _codec_names(inside.get("index_codecs", []))
    return names


def _check_codecs(names: list[Any]) -> None:
    for name in names:
        if name not in _CODECS:
            raise Unreadable(f"is packed by the codec {printable(str(name))[:40]!r}, which is not used here")


def _lengths(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int) and value > 0 for value in values):
        raise Unreadable(f"declares the lengths {printable(str(values))[:60]}")
    return tuple(values)
