"""scikit-learn's own suite over our estimator: every check runs, none is excused."""

import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from unpose import InvariantClustering

ESTIMATORS = [InvariantClustering(n_clusters=3), InvariantClustering()]


@parametrize_with_checks(ESTIMATORS)
def test_contract(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore")  # the suite tells of what it skips by warnings
def test_enough_checks_run_and_none_is_excused():
    results = check_estimator(InvariantClustering(n_clusters=3), on_skip=None, on_fail="raise")
    passed = [result["check_name"] for result in results if result["status"] == "passed"]
    others = {result["check_name"] for result in results} - set(passed)
    assert len(passed) >= 45
    assert others <= {"check_array_api_input"}  # runs only where the environment switches SciPy's array API on
