"""Reads point clouds: PLY (ascii and binary), text with one point in a line, and ``.npy`` arrays."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.files.frames import UnreadableError
from unpose.files.outputs import read_file

_MAX_POINTS = 50_000_000
_MAX_BYTES = 2**32
_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip


def read_points(path: str | Path) -> NDArray[np.float64]:
    """Read a point cloud from a file.

    Parameters
    ----------
    path : str or Path
        A PLY file (ascii, binary little or big endian), whose vertices are read; a ``.npy`` array (n, 2) or (n, 3); or
        text with two or three numbers in each line, separated by spaces, tabs, commas or semicolons. Further columns
        are ignored, and so are empty lines, lines that begin with ``#`` and one line of names at the top.

    Returns
    -------
    array of shape (n, 2) or (n, 3)

    Raises
    ------
    UnreadableError
        If the file cannot be read; the message says why.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "cloud.xyz").write_text("0 0 1\\n2 0 1\\n")
    ...     read_points(Path(folder, "cloud.xyz")).shape
    (2, 3)
    """
    path = Path(path)
    try:
        content = read_file(path, _MAX_BYTES)
        if content.startswith(b"ply"):
            points = _read_ply(content)
        elif content.startswith(b"\x93NUMPY"):
            points = np.load(path, allow_pickle=False)
        else:
            points = _read_text(content)
    except UnreadableError as error:
        raise UnreadableError(f"{path}: {error}") from error
    except (OSError, ValueError, MemoryError) as error:
        raise UnreadableError(f"{path} cannot be read as a point cloud: {error}") from error
    if points.ndim != 2 or points.shape[1] not in (2, 3) or points.dtype.kind not in "fiu":
        raise UnreadableError(f"{path} must hold points (n, 2) or (n, 3), got {points.dtype} {points.shape}")
    return points.astype(np.float64)


def _read_ply(content: bytes) -> NDArray:
    end = re.search(rb"end_header[ \t]*\r?\n", content)
    if end is None:
        raise UnreadableError("is a PLY file without end_header")
    lines = [line.split() for line in content[: end.start()].decode("ascii", "replace").splitlines()]
    form = next((line[1] for line in lines if line[:1] == ["format"] and len(line) > 1), "")
    if form not in ("ascii", "binary_little_endian", "binary_big_endian"):
        raise UnreadableError(f"is a PLY file of the unknown format {form!r}")
    elements = _ply_elements(lines)
    order = ">" if form == "binary_big_endian" else "<"
    body, rows_before, bytes_before = content[end.end() :], 0, 0
    for name, count, properties in elements:
        if name == "vertex":
            break
        if any(kind == "list" for _, kind in properties) and form != "ascii":
            raise UnreadableError("is a binary PLY file with lists before its vertices, which is not supported")
        rows_before += count
        bytes_before += count * sum(np.dtype(_TYPES[kind]).itemsize for _, kind in properties if kind != "list")
    else:
        raise UnreadableError("is a PLY file without vertices")
    names = [each for each, _ in properties]
    wanted = [axis for axis in ("x", "y", "z") if axis in names]
    if wanted[:2] != ["x", "y"]:
        raise UnreadableError(f"has vertices without x and y; their properties are {', '.join(names)}")
    if any(kind == "list" for _, kind in properties):
        raise UnreadableError("has vertices with lists, which is not supported")
    if form == "ascii":
        rows = body.decode("ascii", "replace").splitlines()[rows_before : rows_before + count]
        table = [line.split() for line in rows]
        if len(table) < count or any(len(row) < len(names) for row in table):
            raise UnreadableError(f"ends before its {count} vertices are complete")
        return np.array([[float(row[names.index(axis)]) for axis in wanted] for row in table]).reshape(
            count, len(wanted)
        )
    record = np.dtype([(f"{i}", order + _TYPES[kind]) for i, (_, kind) in enumerate(properties)])
    if len(body) < bytes_before + count * record.itemsize:
        raise UnreadableError(f"ends before its {count} vertices are complete")
    vertices = np.frombuffer(body, record, count, bytes_before)
    return np.stack([vertices[f"{names.index(axis)}"].astype(np.float64) for axis in wanted], axis=1)


def _ply_elements(lines: list[list[str]]) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """(name, count, [(property, type)]) of each element in the header."""
    elements: list[tuple[str, int, list[tuple[str, str]]]] = []
    for line in lines:
        if line[:1] == ["element"] and len(line) == 3 and line[2].isdigit():
            if int(line[2]) > _MAX_POINTS:
                raise UnreadableError(f"declares {line[2]} elements; at most {_MAX_POINTS:,} are read")
            elements.append((line[1], int(line[2]), []))
        elif line[:1] == ["property"] and elements and len(line) >= 3:
            if line[1] != "list" and line[1] not in _TYPES:
                raise UnreadableError(f"has a property of the unknown type {line[1]!r}")
            elements[-1][2].append((line[-1], line[1]))
    return elements


def _read_text(content: bytes) -> NDArray:
    rows: list[list[float]] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        fields = re.split(r"[\s,;]+", line.strip())
        if not fields[0] or fields[0].startswith(("#", "//")):
            continue
        try:
            rows.append([float(field) for field in fields[:3]])
        except ValueError:
            if rows or number > 1:
                raise UnreadableError(f"has no numbers in line {number}: {line.strip()[:40]!r}") from None
    if not rows or len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        raise UnreadableError("must have two or three numbers in every line")
    return np.array(rows)
