"""``unpose register``: the real command on files."""

import json

import numpy as np

from kit.commands import unpose


def test_register_prints_and_writes(tmp_path):
    cloud = np.random.default_rng(0).normal(size=(60, 3)) ** 3
    np.save(tmp_path / "a.npy", cloud)
    np.savetxt(tmp_path / "b.xyz", cloud[::-1] @ np.diag([-1.0, -1.0, 1.0]) + 2)
    files = [str(tmp_path / "a.npy"), str(tmp_path / "b.xyz")]
    done = unpose("register", *files, "--json", "-o", str(tmp_path / "moved.xyz"))
    assert done.status == 0, done.output
    found = json.loads(done.output)
    np.testing.assert_allclose(found["b_from_a"][2], [0, 0, 1, 2], atol=1e-4)
    assert abs(found["degrees"] - 180) < 0.01
    moved = np.loadtxt(tmp_path / "moved.xyz")
    np.testing.assert_allclose(moved, cloud @ np.diag([-1.0, -1.0, 1.0]) + 2, atol=1e-3)


def test_doubtful_and_unreadable(tmp_path):
    np.save(tmp_path / "line.npy", np.arange(30.0)[:, None] ** 2 * np.ones(3))
    line = str(tmp_path / "line.npy")
    done = unpose("register", line, line)
    assert done.status == 1
    assert "doubtful" in done.output
    (tmp_path / "b.ply").write_text("ply")
    assert unpose("register", line, str(tmp_path / "b.ply")).status == 2
