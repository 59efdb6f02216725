"""``unpose cluster`` on more images than it keeps in memory: the same files, and nothing is left of a failure."""

import numpy as np
import pytest

from kit.commands import unpose
from unpose.cluster import InvariantClustering
from unpose.cluster.limits import Limits
from unpose.data import drawings, folders, posed
from unpose.runs import read_run


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(folders, "_IN_MEMORY", 100)
    monkeypatch.setattr(InvariantClustering, "_limits", Limits(in_memory=10))


def test_a_run_that_cannot_begin_leaves_no_trace(few, tmp_path):
    np.save(tmp_path / "stack.npy", posed(drawings(24), copies=5).images)
    words = ["cluster", str(tmp_path / "stack.npy"), "-o", str(tmp_path / "run"), "--clusters", "300"]
    result = unpose(*words)
    assert result.status == 2
    assert "at most" in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_in_pieces_is_finished_and_can_be_exported(few, tmp_path):
    made = posed(drawings(24), copies=8, max_shift=2.0)
    np.save(tmp_path / "stack.npy", made.images)
    run = tmp_path / "run"
    words = ["cluster", str(tmp_path / "stack.npy"), "-o", str(run), "--clusters", "3", "--features", "pixels"]
    result = unpose(*words, "--crop", "1")
    assert result.status == 0, result.output
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]
    assert read_run(run).shape == (22, 22)
    result = unpose("export", str(run), "--to", "npz", "-o", str(tmp_path / "all.npz"))
    assert result.status == 0, result.output
    with np.load(tmp_path / "all.npz") as arrays:
        assert arrays["aligned"].shape == (24, 22, 22)
