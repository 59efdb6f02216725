"""The examples in docstrings: each runs, and gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import unpose

SOURCE = Path(unpose.__file__).parent
MODULES = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.docs
@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert attempted
    assert not failed


def test_there_are_examples():
    assert len(MODULES) > 20
