"""Every public name explains itself: what it does, its parameters with types and defaults, and an example."""

import inspect
import re
from importlib import import_module
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "index.md"
# What the reference shows: every room (tests/architecture/test_pages.py) and some of their side doors.
ROOMS = ("unpose", *re.findall(r"^   (unpose\.[\w.]+)$", REFERENCE.read_text(), re.M))


def public_objects():
    """Name -> every function and class that a room lists in ``__all__``."""
    found = {}
    for room in ROOMS:
        module = import_module(room)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            value = inspect.unwrap(value) if callable(value) else value  # what a cache or another decorator wraps
            is_ours = (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__.startswith("unpose")
            if is_ours and value not in found.values():
                found[f"{room}.{name}"] = value
    return found


def documented_parameters(text):
    """Name -> the line that gives its type, from the Parameters and Attributes sections of a numpydoc docstring."""
    found = {}
    for section in re.finditer(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}\n|\Z)", text, re.M | re.S):
        for names, kind in re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)$", section[1], re.M):
            found |= {name.strip(" *"): kind for name in names.split(",")}
    return found


def problems_of(value):
    """What the docstring of a function or class lacks."""
    text = inspect.getdoc(value) or ""
    if not text:
        yield "no docstring"
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    if ">>>" not in text:
        yield "no example"
    try:
        parameters = inspect.signature(value).parameters
    except ValueError:
        return
    documented = documented_parameters(text)
    for name, parameter in parameters.items():
        if name in ("self", "cls", "args", "kwargs"):
            continue
        if name not in documented:
            yield f"the parameter {name} has no line `{name} : type`"
        elif parameter.default is not inspect.Parameter.empty:
            kind = documented[name]
            if "default" not in kind and "optional" not in kind:
                yield f"{name} : {kind} gives no default"


def test_public_names_are_documented():
    """One test of all names; one test each would be hundreds."""
    assert [f"{name}: {problem}" for name, value in public_objects().items() for problem in problems_of(value)] == []


def test_public_methods_have_docstrings():
    for case, value in public_objects().items():
        for name, member in vars(value).items() if inspect.isclass(value) else ():
            if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(value, name)), f"{case}.{name} has no docstring"


def test_a_missing_parameter_would_be_seen():
    assert list(problems_of(lambda a: a)) == ["no docstring", "no example", "the parameter a has no line `a : type`"]
    text = 'Do.\n\nParameters\n----------\na, b : int\nc : str, default "x"\n\nReturns\n-------\nd : int\n'
    assert documented_parameters(text) == {"a": "int", "b": "int", "c": 'str, default "x"'}


def test_the_reference_has_many_rooms():
    assert len(ROOMS) > 20
