"""The examples in docstrings: each runs, and gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import unpose

SOURCE = Path(unpose.__file__).parent


@pytest.mark.docs
@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_examples_give_what_they_say(path):
    if ">>> " not in path.read_text(encoding="utf-8"):
        return  # and is not imported: some modules need an optional package
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert attempted
    assert not failed
