"""Every public name explains itself: what it does, its parameters with types and defaults, and an example."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "index.md"
# What the reference shows: every room (tests/architecture/test_pages.py) and some of their side doors.
ROOMS = ("unpose", *re.findall(r"^   (unpose\.[\w.]+)$", REFERENCE.read_text(), re.M))


def public_objects():
    """(room, name, object) of every function and class that a room lists in ``__all__``."""
    seen = set()
    for room in ROOMS:
        module = import_module(room)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            value = inspect.unwrap(value) if callable(value) else value  # what a cache or another decorator wraps
            is_ours = (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__.startswith("unpose")
            if is_ours and id(value) not in seen:
                seen.add(id(value))
                yield pytest.param(value, id=f"{room}.{name}")


def documented_parameters(text):
    """Name -> the line that gives its type, from the Parameters and Attributes sections of a numpydoc docstring."""
    found = {}
    for section in re.finditer(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}\n|\Z)", text, re.M | re.S):
        for names, kind in re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)$", section[1], re.M):
            found |= {name.strip(" *"): kind for name in names.split(",")}
    return found


@pytest.mark.parametrize("value", list(public_objects()))
def test_public_names_are_documented(value):
    text = inspect.getdoc(value) or ""
    assert text, "no docstring"
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    assert ">>>" in text, "no example"
    try:
        parameters = inspect.signature(value).parameters
    except ValueError:
        return
    documented = documented_parameters(text)
    for name, parameter in parameters.items():
        if name in ("self", "cls", "args", "kwargs"):
            continue
        assert name in documented, f"the parameter {name} has no line `{name} : type`"
        if parameter.default is not inspect.Parameter.empty:
            kind = documented[name]
            assert "default" in kind or "optional" in kind, f"{name} : {kind} gives no default"


def test_public_methods_have_docstrings():
    for case in public_objects():
        for name, member in vars(case.values[0]).items() if inspect.isclass(case.values[0]) else ():
            if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(case.values[0], name)), f"{case.id}.{name} has no docstring"


def test_a_missing_parameter_would_be_seen():
    text = 'Do.\n\nParameters\n----------\na, b : int\nc : str, default "x"\n\nReturns\n-------\nd : int\n'
    assert documented_parameters(text) == {"a": "int", "b": "int", "c": 'str, default "x"'}


def test_the_reference_has_many_rooms():
    assert len(ROOMS) > 20
