"""CSV for spreadsheets, and poses as readable numbers."""

import csv
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unpose.groups import pose_parts, reflection, rotation, scaling, translation
from unpose.runs.tables import csv_text


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1))
def test_no_cell_begins_like_a_formula_and_all_text_is_kept(rows):
    header, *found = csv.reader(io.StringIO(csv_text(rows[0], rows[1:]), newline=""))
    for written, given_ in zip([header, *found], rows, strict=True):
        assert not [cell for cell in written if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert [cell.removeprefix("'") for cell in written] == [cell.removeprefix("'") for cell in given_]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_header_and_cells_are_protected(start):
    header, row = csv.reader(io.StringIO(csv_text([f"{start}a", "b"], [[f"{start}1", -1.5]]), newline=""))
    assert header == [f"'{start}a", "b"]
    assert row == [f"'{start}1", "-1.5"]


def test_dictionaries_and_sequences_give_the_same_rows():
    assert csv_text(["a", "b"], [{"b": 2, "a": True, "c": 3}, {}]) == csv_text(["a", "b"], [[True, 2], [None, None]])


def test_a_pose_is_rebuilt_from_its_parts(rng):
    for mirrored in (False, True):
        angle, scale, shift = (torch.tensor(rng.uniform(-1, 2, n)) for n in ((), (), 2))
        scale = scale.exp()
        pose = translation(shift) @ scaling(scale) @ rotation(angle)
        if mirrored:
            pose = pose @ reflection().to(pose)
        parts = pose_parts(pose.numpy())
        found = [np.radians(parts["angle"]), parts["scale"], parts["shift_x"], parts["shift_y"]]
        np.testing.assert_allclose(found, [angle, scale, *shift])
        assert parts["mirrored"] == mirrored
