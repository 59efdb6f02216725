"""A plan counts the images, extrapolates what was measured, and says what to change where a run does not fit."""

import json
import time
from dataclasses import fields, replace

import click
import numpy as np
import pytest
from click.testing import CliRunner

from unpose.align import MemoryBudgetError
from unpose.cli import main
from unpose.cluster import InvariantClustering
from unpose.data import posed, read_folder
from unpose.data.survey import Survey, survey_images
from unpose.files import write_image
from unpose.runs import Plan, RunSettings, check_run_memory, plan, plan_run
from unpose.runs.plan import Calibration

MEASURED = Calibration(decode=0.001, each=0.01, pair=1e-5, indexed=0.02, write=0.001)


def survey(count, side=40, in_pieces=False):
    return Survey(count, (side, side), 1, in_pieces, count, np.zeros((3, side, side)), 0.001)


def test_a_survey_counts_files_and_frames(tmp_path):
    for k in range(5):
        write_image(tmp_path / f"{k}.png", np.random.default_rng(k).random((31, 17)))
    np.save(tmp_path / "stack.npy", np.random.default_rng(9).random((40, 31, 17)))
    (tmp_path / "notes.txt").write_text("not an image")
    found = survey_images(tmp_path, 10)
    assert (found.count, found.shape, found.channels, found.in_pieces, found.n_files) == (45, (31, 17), 1, False, 6)
    assert found.sample.shape == (10, 31, 17)
    assert survey_images(tmp_path, 10, memory=370_000).in_pieces
    write_image(tmp_path / "red.png", np.random.default_rng(0).random((31, 17, 3)))
    assert survey_images(tmp_path, 10).channels == 3
    with pytest.raises(ValueError, match="does not exist"):
        survey_images(tmp_path / "missing", 3)


def test_time_grows_as_the_search_does():
    few, twice = (plan.extrapolate(survey(n), MEASURED, RunSettings(jobs=2)) for n in (1000, 2000))
    assert few.search_seconds == pytest.approx(0.01 * 1000 + 1e-5 * 1000**2)
    assert twice.search_seconds == pytest.approx(0.01 * 2000 + 1e-5 * 2000**2)
    many, more = (plan.extrapolate(survey(n, in_pieces=True), MEASURED, RunSettings()) for n in (10**5, 10**6))
    assert more.search_seconds == pytest.approx(10 * many.search_seconds)
    assert few.seconds() == pytest.approx(few.cpu_seconds - few.search_seconds / 2)
    assert more.seconds(workers=100) < more.seconds(workers=10) < more.cpu_seconds


def test_the_time_of_a_network_is_added_and_only_gpus_and_cores_shorten_it():
    without = plan.extrapolate(survey(1000), MEASURED, RunSettings(jobs=2))
    found = plan.extrapolate(survey(1000), replace(MEASURED, features=0.3), RunSettings(jobs=2))
    assert found.feature_seconds == pytest.approx(300)
    assert found.search_seconds == without.search_seconds
    assert found.cpu_seconds == pytest.approx(without.cpu_seconds + 300)
    assert found.seconds() == pytest.approx(without.seconds() + 150)
    assert found.seconds(workers=30) == pytest.approx(without.seconds(workers=30) + 150)
    assert found.gpu_seconds() < without.gpu_seconds() + 30


def test_a_plan_counts_the_network_that_the_run_would_use(tmp_path):
    """Features of a function that computes for a while, as a network does, beside pixels."""
    images = posed(np.tri(16)[None], copies=30, max_shift=1.0).images
    np.save(tmp_path / "stack.npy", images)
    seen = []

    def slow(pictures):
        began = time.process_time()
        while time.process_time() - began < 0.002 * len(pictures):
            pass
        seen.append(len(pictures))
        return pictures.reshape(len(pictures), -1)

    found = plan.calibrate(survey_images(tmp_path / "stack.npy", 60), RunSettings(clusters=2, features=slow), print)
    assert sum(seen) >= 30
    assert found.features > 0.01  # of each image, at eight rotations
    defaults = {option.name: option.default for option in main.get_command(click.Context(main), "plan").params}
    shared = {field.name for field in fields(RunSettings)} & defaults.keys()
    assert {name: defaults[name] for name in shared} == {name: getattr(RunSettings, name) for name in shared}


def test_images_in_pieces_take_disk_and_no_memory():
    one, ten = (plan.extrapolate(survey(10**5, side, True), MEASURED, RunSettings()) for side in (20, 40))
    assert one.memory == ten.memory
    assert ten.temporary - one.temporary == 10**5 * 8 * (40**2 - 20**2)
    assert plan.extrapolate(survey(10**5, 40), MEASURED, RunSettings()).memory > ten.memory + 10**5 * 40**2 * 4


def test_a_plan_has_the_memory_that_the_run_asks_for(tmp_path):
    """A search over sizes and mirrors holds more views of every image, and is refused below what it needs."""
    settings = RunSettings(group="similarity+mirror", jobs=2)
    found = plan.extrapolate(survey(90, 64), MEASURED, settings)
    assert found.memory > plan.extrapolate(survey(90, 64), MEASURED, RunSettings(jobs=2)).memory
    np.save(tmp_path / "stack.npy", np.random.default_rng(0).random((90, 64, 64)))
    images = read_folder(tmp_path)
    check_run_memory(images, settings, found.memory)
    with pytest.raises(MemoryBudgetError):
        check_run_memory(images, settings, found.memory - 10**6)
    assert plan.extrapolate(survey(90, 64), MEASURED, RunSettings(group="auto")).memory > 0


def test_what_does_not_fit_is_said():
    found = plan.extrapolate(survey(10**7, in_pieces=True), MEASURED, RunSettings(jobs=2))
    memory, disk, hours = found.advice(10**9, 10**9)
    assert "memory" in memory
    assert "--size" in disk
    assert "--dask" in hours
    assert "--device cuda" in hours
    assert plan.extrapolate(survey(100), MEASURED, RunSettings()).advice(10**10, 10**10) == []
    assert plan.extrapolate(survey(100), MEASURED, RunSettings()).advice(None, None) == []


@pytest.mark.slow
def test_a_plan_is_within_a_factor_of_two_of_the_run(tmp_path):
    rng = np.random.default_rng(0)
    things = np.zeros((40, 28, 28), np.float32)
    for k in range(40):  # boxes of every kind: no two are alike
        a, b, c, d = rng.integers(4, 24, 4)
        things[k, min(a, b) : max(a, b) + 2, min(c, d) : max(c, d) + 2] = 1
        things[k, rng.integers(6, 20), 6:22] = rng.random()
    images = posed(things, copies=25, max_shift=2.0).images
    np.save(tmp_path / "stack.npy", images)
    settings = RunSettings(clusters=40, features="pixels", jobs=1)
    found = plan_run(tmp_path / "stack.npy", settings)
    assert found.count == 1000
    began = time.process_time()
    InvariantClustering(40, features="pixels", n_jobs=1).fit(images)
    seconds = time.process_time() - began
    assert 0.5 < found.search_seconds / seconds < 2, (found, seconds)


@pytest.mark.slow
def test_the_command_prints_a_plan_and_writes_nothing(tmp_path):
    np.save(tmp_path / "stack.npy", posed(np.tri(16)[None], copies=40, max_shift=1.0).images)
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(main, ["plan", str(tmp_path / "stack.npy"), "--clusters", "2", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["plan"]["count"] == 40
    assert set(said["seconds"]) == {"here", "one_gpu", "workers"}
    assert sorted(tmp_path.iterdir()) == before
    result = CliRunner().invoke(main, ["plan", str(tmp_path / "stack.npy"), "--clusters", "2"])
    assert "40 images of 16 x 16" in result.stdout
    assert CliRunner().invoke(main, ["plan", str(tmp_path / "none")]).exit_code == 2


def test_the_fields_of_a_plan():
    found = plan.extrapolate(survey(1000), MEASURED, RunSettings())
    assert isinstance(found, Plan)
    assert found.disk > 1000 * 40**2 * 2
