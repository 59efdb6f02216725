"""Reads Zarr arrays from a folder, after checking that their metadata are harmless.

The metadata of a Zarr array name the codecs that decompress it, and one of them is pickle, which runs code. So the
metadata of each array are read as plain JSON first: only plain numbers and only the codecs listed here are accepted.
Then the array is opened by itself, never through the consolidated metadata of its group.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unpose.files.frames import UnreadableError, import_optional, printable_name
from unpose.files.stacks import StoredArray, choose_array, chunked_array

METADATA_FILES = ("zarr.json", ".zarray", ".zgroup")
"""A folder that holds one of these files is a Zarr array or group, not a folder of images."""

_CODECS = {
    "zlib", "gzip", "bz2", "lzma", "lz4", "zstd", "blosc", "shuffle", "delta", "crc32c", "bytes", "transpose",
    "sharding_indexed",
}  # fmt: skip
_MAX_METADATA_BYTES = 2**20
_MAX_FOLDERS = 10_000

_Declared = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape of an array and of its chunks."""


@contextmanager
def open_zarr(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open one array of a Zarr folder."""
    found = _find_arrays(path)
    chosen = choose_array({name: shape for name, (shape, _) in found.items()}, key)
    shape, chunks = found[chosen]
    _check_no_links(path / chosen)
    zarr = import_optional("zarr", "formats", "a Zarr array")
    array = zarr.open_array(store=str(path / chosen), mode="r")
    if tuple(array.shape) != shape or array.dtype.kind not in "biuf":
        raise UnreadableError("is not the array its metadata declares")
    yield chunked_array(shape, np.dtype(array.dtype), chunks, lambda first, last: np.asarray(array[first:last]))


def _find_arrays(root: Path) -> dict[str, _Declared]:
    """Shape and chunks of every numeric array in a Zarr folder, by name; the root itself is called ``.``."""
    found: dict[str, _Declared] = {}
    todo, n_folders, errors = [root], 0, []
    while todo:
        folder = todo.pop()
        if (n_folders := n_folders + 1) > _MAX_FOLDERS:
            raise UnreadableError(f"has more than {_MAX_FOLDERS:,} groups")
        try:
            declared = _declared(folder)
        except UnreadableError as error:
            errors.append(error)
            continue
        if declared is None:
            with os.scandir(folder) as entries:
                todo += sorted(
                    (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)), reverse=True
                )
        else:
            found[folder.relative_to(root).as_posix()] = declared
    if errors and not found:
        raise errors[0]
    return found


def _check_no_links(root: Path) -> None:
    """Refuse an array with a chunk or metadata that are a link, which could lead to any file, or no regular file."""
    todo = [root]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    name = printable_name(Path(entry.path).relative_to(root).as_posix())
                    what = "a link, which is not followed" if entry.is_symlink() else "not a regular file"
                    raise UnreadableError(f"holds {name}, which is {what}; copy the file itself there")


def _declared(folder: Path) -> _Declared | None:
    """Checked shape and chunks of the array in this folder; None for a group."""
    if (folder / ".zarray").is_file():
        metadata = _read_json(folder / ".zarray")
        codecs = [*(metadata.get("filters") or []), metadata.get("compressor") or {"id": "bytes"}]
        _check_codecs([codec.get("id") for codec in codecs])
        kind = np.dtype(str(metadata["dtype"])).kind
        chunks = metadata["chunks"]
    elif (folder / "zarr.json").is_file():
        metadata = _read_json(folder / "zarr.json")
        if metadata.get("node_type") != "array":
            return None
        _check_codecs(_codec_names(metadata.get("codecs", [])))
        if metadata.get("storage_transformers"):
            raise UnreadableError("uses storage transformers, which are not supported")
        kind = np.dtype(str(metadata["data_type"])).kind
        chunks = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    else:
        return None
    if kind not in "biuf":
        raise UnreadableError(
            f"holds values of type {printable_name(str(metadata.get('dtype', metadata.get('data_type'))))}"
        )
    return _lengths(metadata["shape"]), _lengths(chunks)


def _read_json(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        raise UnreadableError(f"holds {path.name}, which is a link, which is not followed; copy the file itself there")
    if path.stat().st_size > _MAX_METADATA_BYTES:
        raise UnreadableError(f"has metadata of more than {_MAX_METADATA_BYTES:,} bytes")
    metadata = json.loads(path.read_bytes())
    if not isinstance(metadata, dict):
        raise UnreadableError("has metadata that are not those of a Zarr array")
    return metadata


def _codec_names(codecs: Any) -> list[Any]:
    names = []
    for codec in codecs:
        names.append(codec["name"] if isinstance(codec, dict) else codec)
        nested = codec.get("configuration", {}) if isinstance(codec, dict) else {}
        names += _codec_names(nested.get("codecs", [])) + _codec_names(nested.get("index_codecs", []))
    return names


def _check_codecs(names: list[Any]) -> None:
    for name in names:
        if name not in _CODECS:
            raise UnreadableError(f"uses the codec {printable_name(str(name))[:40]!r}, which is not supported")


def _lengths(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int) and value > 0 for value in values):
        raise UnreadableError(f"declares the lengths {printable_name(str(values))[:60]}")
    return tuple(values)
