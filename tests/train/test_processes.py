"""Two processes under ``torchrun``: the weights of one with the doubled batch, and a killed one that is survived."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from kit.trainings import assert_close, state_file
from unpose.data import load
from unpose.train import processes, recipe_toml, train


def torchrun(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments],
        capture_output=True, text=True, cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip


@pytest.fixture
def on_disk(problem, tmp_path):
    """The small problem as an archive, which every process can read."""
    arrays = {}
    for part, name in ((problem.train, "train"), (problem.validation, "valid"), (problem.test, "test")):
        arrays |= {f"x_{name}": part.images, f"y_{name}": part.labels}
    np.savez(tmp_path / "marks.npz", **arrays)
    return tmp_path / "marks.npz"


@pytest.fixture
def recipe(small_recipe, on_disk):
    # Plain descent: Adam divides by gradients that may be nothing but rounding.
    return small_recipe(
        data={"name": str(on_disk)}, batch_size=7, average=0.9, poses={"max_angle": 20, "max_shift": 1},
        optimizer={"name": "sgd", "learning_rate": 0.05},
    )  # fmt: skip


@pytest.fixture
def group_of_one():
    """All-reduce with this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", [True, False])
def test_shared_norms_are_those_of_one_process_in_half_precision_too(dtype, affine, group_of_one, generator):
    maps = (torch.randn(16, 3, 7, 5, generator=generator) + torch.tensor([0.0, 20, -40])[:, None, None]).to(dtype)
    alone, shared = (torch.nn.BatchNorm2d(3, affine=affine) for _ in range(2))
    processes.share_batch_statistics(shared, processes.Processes(0, 2))
    found, expected = shared(maps), alone(maps)
    assert found.dtype == expected.dtype == dtype
    close = {"atol": 2e-5, "rtol": 2e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(found, expected, **close)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], value)


@pytest.mark.parametrize("poses", [{"max_angle": 30}, {"max_shift": 1.0, "bend": 0.5}])
def test_processes_share_the_poses_of_a_batch(poses, problem, small_recipe, watched, group_of_one):
    recipe = small_recipe(epochs=1, batch_size=7, poses=poses)
    train(problem, recipe.changed(batch_size=14))
    alone = torch.stack(watched.trained)  # (steps, batch, c, h, w)
    parts = []
    for rank in range(2):
        watched.trained.clear()
        train(problem, recipe, processes=processes.Processes(rank, 2))
        parts.append(torch.stack(watched.trained))
    assert torch.equal(torch.cat(parts, dim=1), alone)


ROUNDING = {"rtol": 2e-4, "atol": 2e-5}


@pytest.fixture
def doubled(recipe, on_disk, tmp_path):
    """One process with the doubled batch."""
    train(load(on_disk), recipe.changed(batch_size=14), tmp_path / "doubled")
    return state_file(tmp_path / "doubled")


@pytest.mark.slow  # three more processes import torch
def test_two_processes_are_one_with_the_doubled_batch(recipe, doubled, tmp_path):
    (tmp_path / "small.toml").write_text(recipe_toml(recipe))
    done = torchrun("-m", "unpose", "train", "--config", "small.toml", "-o", "run", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Test accuracy") == 1  # one of the two speaks
    assert_close(doubled, state_file(tmp_path / "run"), **ROUNDING)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "card.md", "config.toml", "confusion.csv", "confusion.png", "curves.png", "log.csv", "model.safetensors",
        "quick.safetensors", "result.json", "state.safetensors",
    ]  # fmt: skip


WORKER = """
import os, signal, sys
from pathlib import Path
import torch
from unpose.data import load
from unpose.train import read_recipe, train
from unpose.train.processes import joined_processes, was_restarted

recipe = read_recipe(Path("small.toml"))
with joined_processes(torch.device("cpu")) as processes:
    def watch(moment):
        if moment.step == 5 and processes.rank == 1 and not was_restarted():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    train(load(recipe.data.name), recipe, Path("run"), processes=processes, resume=was_restarted(), progress=watch)
"""


@pytest.mark.slow
def test_a_killed_process_is_survived_by_restart_from_the_checkpoint(recipe, doubled, tmp_path):
    (tmp_path / "small.toml").write_text(recipe_toml(recipe))
    (tmp_path / "worker.py").write_text(WORKER)
    done = torchrun("--max-restarts", "1", "worker.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert_close(doubled, state_file(tmp_path / "run"), **ROUNDING)
