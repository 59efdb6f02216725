"""scikit-learn's own test suite on our estimator: every check runs, and none is skipped or expected to fail."""

from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from unpose import InvariantClustering

pytestmark = pytest.mark.estimator

# It runs only if the environment enables SciPy's support of the array API.
OPTIONAL = {"check_array_api_input"}


@parametrize_with_checks([InvariantClustering(n_clusters=3)])
def test_contract(estimator, check):
    try:
        check(estimator)
    except SkipTest:
        assert check.func.__name__ in OPTIONAL


@pytest.mark.slow  # the same checks once more
@parametrize_with_checks([InvariantClustering()])
def test_contract_where_the_number_of_clusters_is_found(estimator, check):
    test_contract(estimator, check)


def test_the_suite_has_enough_checks():
    names = {check.func.__name__ for _, check in estimator_checks_generator(InvariantClustering(n_clusters=3))}
    assert len(names - OPTIONAL) >= 45
