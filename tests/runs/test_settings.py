"""The settings of a run in and out of ``config.toml``."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unpose.cluster import InvariantClustering
from unpose.files import UnreadableError, in_bytes
from unpose.runs import RunError, RunSettings
from unpose.runs.settings import config_text, is_users_mistake, read_config, read_settings

ABOUT = {"version": "1", "input": "x", "canvas": "x"}


@settings(max_examples=10, deadline=None)
@given(
    clusters=st.one_of(st.just("auto"), st.integers(1)), max_angle=st.floats(0, 180), text=st.text(),
    notes=st.lists(st.text()),
)  # fmt: skip
def test_a_configuration_is_read_back(tmp_path_factory, clusters, max_angle, text, notes):
    chosen = RunSettings(clusters=clusters, max_angle=max_angle, group=text)
    about = ABOUT | {"input": text, "notes": notes}
    file = tmp_path_factory.mktemp("config") / "config.toml"
    file.write_bytes(config_text(chosen, about).encode())
    config = read_config(file)
    assert (config.command, config.settings, config.about) == ("cluster", chosen, about)
    assert read_settings(file) == asdict(chosen)


def test_a_run_of_align_has_no_number_of_clusters(tmp_path):
    (tmp_path / "config.toml").write_text(config_text(RunSettings(), ABOUT, omit=("clusters",)))
    assert read_config(tmp_path / "config.toml").command == "align"


@pytest.mark.parametrize(
    "text",
    [
        "clusters = 3\n", "[made]\nby = 'me'\n", "clusters = [", 'name = "a recipe"\n',
        "crop = nan\n[made]\nversion = '1'\ninput = 'x'\ncanvas = 'x'\n",
    ],
)  # fmt: skip
def test_other_files_are_not_the_configuration_of_a_run(tmp_path, text):
    (tmp_path / "config.toml").write_text(text)
    assert read_config(tmp_path / "config.toml") is None
    assert read_config(tmp_path / "missing.toml") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-angel = 4", "max-angel"),
        ("clusters = [", "not a TOML file"),
        ("clusters = [1]", r"clusters in .*my.toml must be a whole number or text, got \[1\]"),
        ("clusters = 2.5", "clusters in .* must be a whole number or text, got 2.5"),
        ("seed = 1e400", "seed in .* must be a whole number, got inf"),
        ("seed = true", "seed in .* must be a whole number, got True"),
        ("crop = nan", "crop in .* must be a finite number, got nan"),
        ("max-shift = 2020-02-02", "max-shift in .* must be a finite number or text, got datetime.date"),
        ("labels = 3", "labels in .* must be text, got 3"),
    ],
)
def test_wrong_settings_are_named(tmp_path, text, message):
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(RunError, match=message):
        read_settings(tmp_path / "my.toml")


def test_threads_and_memory_do_not_decide_results():
    settings = RunSettings(seed=3)
    assert replace(settings, jobs=1, memory=10**9).decisive() == settings.decisive()
    assert settings.changed() == {"seed": 3}


@pytest.mark.parametrize(
    ("call", "is_theirs"),
    [
        (lambda: InvariantClustering(9).fit(np.zeros((3, 5, 5))), True),  # a check of ours
        (lambda: in_bytes("many"), True),
        (lambda: (_ for _ in ()).throw(UnreadableError("is damaged")), True),  # a class of ours, wherever it is raised
        (lambda: b"\xff".decode(), True),
        (lambda: np.zeros(3).reshape(2, 2), False),
        (lambda: int("three"), False),
        (lambda: (_ for _ in ()).throw(ValueError("raised by other code")), False),
        (lambda: read_settings(3), False),  # an AttributeError
        (lambda: RunSettings(max_angle="wide").search_parameters(), False),  # a TypeError of the interpreter
    ],
)
def test_only_what_a_check_of_ours_raises_is_the_mistake_of_the_user(call, is_theirs):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    assert is_users_mistake(raised.value) is is_theirs
