"""The end of every help text: examples that are real calls, and the address of a page that exists."""

import json
import re
import shlex
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

import click
import pytest

from kit.commands import Answer, named, refused, unpose, unpose_process
from unpose.cli import COMMANDS, main
from unpose.cli.shared import site
from unpose.train import pretrained_names

DOCS = Path(__file__).parents[2] / "docs"


def subcommands(command, path=()):
    """(the words of a call, the command) of every command and subcommand."""
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from subcommands(found, (*path, name))


def help_end(command):
    """The examples of a help text, each as typed, and what follows them."""
    examples, _, documentation = (
        command.get_help(click.Context(command)).rpartition("Examples:\n")[2].partition("\n  Documentation")
    )
    return re.findall(r"^    (unpose .*?)(?=  |\s*$|[|;>] )", examples, re.M), documentation


@cache  # asked in tests, not when they are collected
def commands():
    """The words of a call -> the command, for every command and subcommand."""
    return {"unpose": main} | {f"unpose {' '.join(words)}": command for words, command in subcommands(main)}


@cache
def examples():
    return sorted({example for command in commands().values() for example in help_end(command)[0]})


def test_every_help_ends_with_two_examples_and_a_page():
    for call, command in commands().items():
        examples, documentation = help_end(command)
        assert sum(example.startswith(call) for example in examples) >= 2, f"`{call} --help` needs two examples"
        address = documentation.split()[-1]
        assert address.startswith("file://"), f"`{call} --help` gives no address: {documentation}"
        assert Path(address.removeprefix("file://")).is_file()


def test_every_page_of_a_command_is_in_the_documentation():
    for name, (line, page) in COMMANDS.items():
        assert line.endswith(".")
        assert (DOCS / f"{page}.md").is_file(), f"the page of `unpose {name}` in the table of cli/__init__.py"


def make_inputs(command, context, words):
    """Make the files and folders that a call reads, with what is read while the call is parsed."""
    values, _, _ = command.make_parser(context).parse_args([word for word in words if word != "--json"])
    for parameter in command.params:
        if not (
            getattr(parameter.type, "exists", False) or type(parameter.type).__name__ in ("ImagesPath", "ModelFile")
        ):
            continue
        given = values.get(parameter.name, ())
        given = given if isinstance(given, str | list | tuple) else ()
        for path in (Path(each.partition("::")[0]) for each in ([given] if isinstance(given, str) else given)):
            if path.suffix:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            elif str(path) not in pretrained_names():
                path.mkdir(parents=True, exist_ok=True)
                for name in ("config.toml", "model.safetensors"):
                    (path / name).touch()


def test_every_example_is_a_call_that_would_be_accepted(tmp_path, monkeypatch):
    """Every value of it, too: all is parsed and checked, and nothing is run."""
    assert len(examples()) > 60
    monkeypatch.chdir(tmp_path)
    for example in examples():
        command, context, words = named(shlex.split(example)[1:])
        make_inputs(command, context, words)
        with suppress(click.exceptions.Exit):  # of `--list`
            command.parse_args(context, words)


def test_a_wrong_example_would_be_seen():
    for words, error in ((["models", "--colour"], click.NoSuchOption), (["cluster", "."], click.MissingParameter)):
        command, context, others = named(words)
        with pytest.raises(error):
            command.parse_args(context, others)


def test_an_example_that_takes_no_time_runs():
    example = "unpose reproduce --list"
    assert example in examples()
    done = unpose(*shlex.split(example)[1:])
    assert done.status == 0
    assert "unpose reproduce experiment1" in done.out


# Calls in a process of their own, which takes the package from where PYTHONPATH begins.
CALLS = """
import json, sys
from kit.commands import unpose
print(json.dumps([unpose(*words) for words in json.loads(sys.argv[1])]))
"""


def test_docs_opens_pages_that_lie_in_the_package_or_says_what_to_do(tmp_path):
    """In a copy of the package that holds two pages of a built site, as a wheel does; the browser notes addresses."""
    package, opened = tmp_path / "lib" / "unpose", tmp_path / "opened"
    shutil.copytree(Path(site.__file__).parents[2], package, ignore=shutil.ignore_patterns("weights", "__pycache__"))
    for name in ("index.html", "howto/audit.html"):
        (package / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (package / "site" / name).write_text(name)
    (tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    (tmp_path / "browser").chmod(0o755)
    places = {"PYTHONPATH": f"{tmp_path / 'lib'}:{Path(__file__).parents[1]}", "BROWSER": str(tmp_path / "browser")}

    def answers(*calls):
        done = unpose_process(json.dumps([["docs", *words] for words in calls]), program=["-c", CALLS], env=places)
        assert done.status == 0, done.err
        return [Answer(*answer) for answer in done.json]

    *found, missing = answers([], ["audit"], ["howto/audit"], ["nowhere"])
    pages = [(package / "site" / name).as_uri() for name in ("index.html", "howto/audit.html", "howto/audit.html")]
    assert [answer.out.strip() for answer in found] == pages == opened.read_text().split()
    refused(missing, "no page 'nowhere'")
    for path in (package / "site").rglob("*.html"):
        path.rename(path.with_suffix(".md"))
    (source,) = answers([])
    assert source.status == 0
    assert "index.md" in source.out
    assert "make docs" in source.err
    (package / "site").rename(package / "elsewhere")
    (nothing,) = answers([])
    assert nothing.status == 1
    assert "make docs" in nothing.err
    assert len(opened.read_text().split()) == 3
