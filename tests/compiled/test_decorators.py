"""The message that kernels are compiled, and machines on which compiled kernels cannot be kept."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import unpose
from unpose.compiled import decorators


def compilation_of(module, folder):
    kernel = SimpleNamespace(py_func=SimpleNamespace(__module__=module), stats=SimpleNamespace(cache_path=folder))
    return SimpleNamespace(data={"dispatcher": kernel})


def test_compilation_is_announced_once_and_only_ours(caplog):
    announcement = decorators._Announcement()
    announcement.on_start(compilation_of("somebody.kernels", "/cache"))
    assert caplog.messages == []
    announcement.on_start(compilation_of("unpose.align.kernels", "/cache"))
    announcement.on_start(compilation_of("unpose.nn.ops", "/cache"))
    (message,) = caplog.messages
    assert "compiles code for this machine" in message
    assert message.endswith("kept in /cache")


def test_without_a_cache_folder_the_message_says_what_to_set(caplog):
    decorators._Announcement().on_start(compilation_of("unpose.align.kernels", None))
    assert "NUMBA_CACHE_DIR" in caplog.messages[0]


def test_a_function_for_whose_code_there_is_no_folder_is_not_cached():
    names = {}
    exec("def probe(): return 1", names)  # of no file
    assert decorators.can_cache()
    assert not decorators.can_cache(names["probe"])


def test_no_kernel_asks_for_a_cache_that_may_not_exist():
    source = Path(unpose.__file__).parent
    assert not [
        path for path in source.rglob("*.py") if "cache=True" in path.read_text() and path.name != "decorators.py"
    ]


@pytest.mark.slow
def test_the_package_works_where_no_folder_can_be_written_to():
    """On stderr there is one line; as many programs do, it compiles again."""
    code = (
        "from numba.core import caching; caching.CacheImpl._locator_classes = []\n"
        "import numpy as np; from unpose.align import align; from unpose.cluster import modularity\n"
        "bar = np.zeros((1, 16, 16), np.float32); bar[:, 3:13, 7:9] = 1\n"
        "print(float(align(bar, bar).distances[0]) < 0.01)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "True", done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
