"""The estimator, the settings of a run and the options of its commands have the same names and defaults."""

from dataclasses import fields

import pytest

from kit.commands import named
from unpose.cluster import InvariantClustering
from unpose.runs import RunSettings

OF_CLUSTERS = {"clusters", "features", "labels"}
"""Settings that a run of ``unpose align`` ignores."""


@pytest.mark.parametrize("name", ["cluster", "align"])
def test_options_have_the_names_and_defaults_of_the_settings(name):
    command, _, _ = named([name])
    options = {parameter.name: parameter.default for parameter in command.params}
    settings = {field.name: field.default for field in fields(RunSettings)}
    expected = {key for key in settings if name == "cluster" or key not in OF_CLUSTERS}
    assert options.keys() & settings.keys() == expected
    assert {key: options[key] for key in expected} == {key: settings[key] for key in expected}


def test_the_estimator_has_the_defaults_of_the_settings():
    settings, estimator = RunSettings(), InvariantClustering().get_params()
    assert (settings.clusters, settings.jobs, settings.memory) == ("auto",) * 3  # None of the estimator
    same = settings.search_parameters() | {
        "n_clusters": None, "n_jobs": None, "memory": None, "features": settings.features,
        "random_state": settings.seed,
    }  # fmt: skip
    assert same == {key: estimator[key] for key in same}
    # The estimator takes arrays, and no device unless it is told to.
    assert estimator.keys() - same.keys() == {"image_shape", "channels_first", "device"}
