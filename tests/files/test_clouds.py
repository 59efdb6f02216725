"""Point clouds are read from PLY, text and npy files, and damaged ones are refused with a reason."""

import numpy as np
import pytest

from unpose.files import UnreadableError, read_points

POINTS = np.array([[0.5, 1.0, -2.0], [3.0, 4.0, 5.5]])
HEADER = (
    "ply\nformat {form} 1.0\ncomment made by hand\nelement vertex 2\nproperty float x\nproperty uchar red\n"
    "property double y\nproperty float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
)


def ply(form):
    head = HEADER.format(form=form).encode()
    if form == "ascii":
        return head + b"0.5 9 1 -2\n3 9 4 5.5\n3 0 1 1\n"
    order = "<" if "little" in form else ">"
    record = np.dtype([("x", order + "f4"), ("red", "u1"), ("y", order + "f8"), ("z", order + "f4")])
    rows = np.array([(x, 9, y, z) for x, y, z in POINTS], dtype=record)
    return head + rows.tobytes() + b"\x03" + b"\0" * 12


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply(tmp_path, form):
    (tmp_path / "cloud.ply").write_bytes(ply(form))
    np.testing.assert_array_equal(read_points(tmp_path / "cloud.ply"), POINTS)
    (tmp_path / "cut.ply").write_bytes(ply(form)[: len(HEADER.format(form=form)) + 9])
    with pytest.raises(UnreadableError, match=r"cut.ply: ends before its 2 vertices"):
        read_points(tmp_path / "cut.ply")


@pytest.mark.parametrize("text", ["0.5 1 -2\n3 4 5.5\n", "x,y,z\n0.5,1,-2\n\n3,4,5.5,77\n", "# a\n0.5;1;-2\n3;4;5.5"])
def test_text(tmp_path, text):
    (tmp_path / "cloud.xyz").write_text(text)
    np.testing.assert_array_equal(read_points(tmp_path / "cloud.xyz"), POINTS)


def test_npy_and_errors(tmp_path):
    np.save(tmp_path / "cloud.npy", POINTS[:, :2])
    assert read_points(tmp_path / "cloud.npy").shape == (2, 2)
    np.save(tmp_path / "bad.npy", np.ones((2, 2, 2)))
    broken = {
        "words.xyz": b"0 1 2\nthree four\n", "ragged.xyz": b"0 1 2\n3 4\n", "empty.xyz": b"", "one.xyz": b"1\n2\n",
        "noend.ply": b"ply\nformat ascii 1.0\n", "what.ply": b"ply\nformat zip 1.0\nend_header\n",
        "novertex.ply": b"ply\nformat ascii 1.0\nelement face 0\nend_header\n",
        "huge.ply": b"ply\nformat ascii 1.0\nelement vertex 99999999999\nproperty float x\nend_header\n",
        "noxy.ply": b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float z\nend_header\n1\n",
    }  # fmt: skip
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
    for name in ("bad.npy", "missing.ply", *broken):
        with pytest.raises(UnreadableError, match=name):
            read_points(tmp_path / name)
