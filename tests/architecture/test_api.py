"""The public names, their signatures and the options of the commands are those of `tests/api.txt`.

A change of a door is thus a line of the change that is reviewed. After a change that is meant, run

    python tests/architecture/test_api.py
"""

import difflib
import importlib
import inspect
import re
from pathlib import Path

import click

import unpose

SNAPSHOT = Path(__file__).parents[1] / "api.txt"


def signature(thing):
    """Names, kinds and defaults of the parameters; types would depend on the versions of other packages."""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [parameter.replace(annotation=parameter.empty) for parameter in given.parameters.values()]
    shown = str(given.replace(parameters=bare, return_annotation=given.empty))
    return re.sub(r"<(class|function) '?([\w.]+)[^>]*>", r"\2", shown)


def is_ours(member):
    return getattr(inspect.unwrap(member), "__module__", "").split(".")[0] == "unpose"


def described(path, thing):
    """The lines of a public name: its signature and, if it is a class of ours, its public methods and properties."""
    if inspect.isroutine(thing):
        yield f"{path}{signature(thing)}"
    elif inspect.isclass(thing):
        yield f"class {path}{signature(thing)}"
        for name in sorted(dir(thing)):
            member = inspect.getattr_static(thing, name)
            function = getattr(member, "__func__", getattr(member, "fget", None) or getattr(member, "func", member))
            if name.startswith("_") or not callable(function) or not is_ours(function):
                continue
            is_value = not (inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)))
            yield f"    {path}.{name}{'' if is_value else signature(function)}"
    else:
        yield f"{path}: {type(thing).__name__}"


def commands(group, path):
    """The lines of all commands: arguments in capitals, then options with their other names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        words = [
            parameter.human_readable_name.upper() if isinstance(parameter, click.Argument) else "/".join(names)
            for parameter in command.params
            if (names := [*parameter.opts, *parameter.secondary_opts])
        ]
        yield f"{path} {name}: {' '.join(sorted(words))}"


def api():
    from unpose.cli import main

    lines = ["# The doors: commands, then public names with their parameters."]
    lines += commands(main, "unpose")
    rooms = [name for name in unpose.__all__ if inspect.ismodule(getattr(unpose, name))]
    for name in sorted(set(unpose.__all__) - set(rooms)):
        lines.append(f"unpose.{name}")
    for room in sorted(rooms):
        module = importlib.import_module(f"unpose.{room}")
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            lines += (
                [f"unpose.{room}.{name}: module"]
                if inspect.ismodule(thing)
                else described(f"unpose.{room}.{name}", thing)
            )
    return "\n".join(lines) + "\n"


def test_the_doors_are_those_of_the_snapshot():
    change = difflib.unified_diff(SNAPSHOT.read_text().splitlines(), api().splitlines(), "tests/api.txt", "now", n=0)
    told = "\n".join(change)
    assert not told, f"{told}\n\nIf this is meant, run python tests/architecture/test_api.py"


if __name__ == "__main__":
    SNAPSHOT.write_text(api())
