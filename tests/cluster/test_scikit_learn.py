"""scikit-learn's own test suite on our estimator: every check runs, and none is skipped or expected to fail."""

from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from unpose.cluster import InvariantClustering

pytestmark = pytest.mark.estimator

# It runs only if the environment enables SciPy's support of the array API.
OPTIONAL = {"check_array_api_input"}
SLOW = pytest.mark.slow


# Those of the checks that find most mistakes; the others are slow tests.
FIRST = {
    "check_estimator_cloneable", "check_parameters_default_constructible", "check_no_attributes_set_in_init",
    "check_fit2d_1sample", "check_estimators_nan_inf", "check_n_features_in",
    "check_clusterer_compute_labels_predict", "check_methods_sample_order_invariance", "check_estimators_pickle",
}  # fmt: skip


def run_check(estimator, check):
    try:
        check(estimator)
    except SkipTest:
        assert check.func.__name__ in OPTIONAL


def is_first(check):
    return check.func.__name__ in FIRST and not check.keywords


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{check.func.__name__}{check.keywords or ''}", marks=() if is_first(check) else SLOW)
        for _, check in estimator_checks_generator(InvariantClustering(n_clusters=3))
    ],
)
def test_contract(check):
    run_check(InvariantClustering(n_clusters=3), check)


def test_the_suite_has_enough_checks():
    names = {check.func.__name__ for _, check in estimator_checks_generator(InvariantClustering(n_clusters=3))}
    assert len(names - OPTIONAL) >= 45
    assert len(names & FIRST) >= 7
