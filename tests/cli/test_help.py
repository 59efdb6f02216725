"""The end of every help text: examples that are real calls, and the address of a page that exists."""

import re
import shlex
import webbrowser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from unpose.cli import COMMANDS, main
from unpose.cli.shared import site
from unpose.cli.shared.inputs import ImagesPath, ModelFile

DOCS = Path(__file__).parents[2] / "docs"


def calls(command, path=()):
    """(the words of a call, the command) of every command and subcommand."""
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from calls(found, (*path, name))


def help_end(command):
    """The examples of a help text, each as typed, and what follows them."""
    examples, _, documentation = (
        command.get_help(click.Context(command)).rpartition("Examples:\n")[2].partition("\n  Documentation")
    )
    return re.findall(r"^    (unpose .*?)(?=  |\s*$|[|;>] )", examples, re.M), documentation


CALLS = {"unpose": main} | {f"unpose {' '.join(words)}": command for words, command in calls(main)}
EXAMPLES = sorted({example for command in CALLS.values() for example in help_end(command)[0]})


def test_every_help_ends_with_two_examples_and_a_page():
    for call, command in CALLS.items():
        examples, documentation = help_end(command)
        assert sum(example.startswith(call) for example in examples) >= 2, f"`{call} --help` needs two examples"
        address = documentation.split()[-1]
        assert address.startswith("file://"), f"`{call} --help` gives no address: {documentation}"
        assert Path(address.removeprefix("file://")).is_file()


def test_every_page_of_a_command_is_in_the_documentation():
    for name, (line, page) in COMMANDS.items():
        assert line.endswith(".")
        assert (DOCS / f"{page}.md").is_file(), f"the page of `unpose {name}` in the table of cli/__init__.py"


def test_every_example_is_a_call_that_would_be_accepted(tmp_path, monkeypatch):
    assert len(EXAMPLES) > 60
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()  # read while the call is parsed
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: None)  # parse and check, but do not run
    for kind in (click.Path, ImagesPath, ModelFile):
        monkeypatch.setattr(kind, "convert", lambda self, value, param, ctx: Path(value))  # photos/ need not exist
    for example in EXAMPLES:
        done = CliRunner().invoke(main, shlex.split(example)[1:])
        assert done.exit_code == 0, f"{example}: {done.output}"


def test_a_wrong_example_would_be_seen(monkeypatch):
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: None)
    assert CliRunner().invoke(main, ["models", "--colour"]).exit_code == 2


def test_an_example_that_takes_no_time_runs():
    example = "unpose reproduce --list"
    assert example in EXAMPLES
    done = CliRunner().invoke(main, shlex.split(example)[1:])
    assert done.exit_code == 0
    assert "unpose reproduce experiment1" in done.stdout


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A package that holds two pages of a built site, as a wheel does; the addresses that a browser was given."""
    package, opened = tmp_path / "lib" / "unpose", []
    (package / "site" / "howto").mkdir(parents=True)
    (package / "site" / "index.html").write_text("first")
    (package / "site" / "howto" / "audit.html").write_text("audit")
    monkeypatch.setattr(site, "_PACKAGE", package)
    monkeypatch.setattr(site, "_CHECKOUT", package.parents[1])
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    return package, opened


@pytest.mark.parametrize(
    ("typed", "page"), [([], "index.html"), (["audit"], "howto/audit.html"), (["howto/audit"], "howto/audit.html")]
)
def test_docs_opens_the_page_that_lies_in_the_package(typed, page, built):
    package, opened = built
    done = CliRunner().invoke(main, ["docs", *typed])
    assert opened == [(package / "site" / page).as_uri()] == done.stdout.split()


def test_docs_says_what_to_do_where_there_is_no_page_or_no_site(built):
    package, opened = built
    done = CliRunner().invoke(main, ["docs", "nowhere"])
    assert (done.exit_code, opened) == (2, [])
    assert "no page 'nowhere'" in done.stderr
    for path in (package / "site").rglob("*.html"):
        path.rename(path.with_suffix(".md"))
    done = CliRunner().invoke(main, ["docs"])
    assert (done.exit_code, opened) == (0, [])
    assert "index.md" in done.stdout
    assert "make docs" in done.stderr
    (package / "site").rename(package / "elsewhere")
    done = CliRunner().invoke(main, ["docs"])
    assert done.exit_code == 1
    assert "make docs" in done.stderr
