"""Help, version, and the messages for wrong calls."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unpose.cli import COMMANDS, commands, main


@pytest.mark.parametrize("name", ["", *COMMANDS, "demo learn"])
def test_help_explains_ends_with_examples_and_imports_nothing_slow(name, quick_help):
    text = quick_help(*name.split())
    assert "\n  Examples:\n" in text
    examples = text.rpartition("Examples:\n")[2]
    assert examples.count(f"unpose {name}".rstrip()) >= 2  # the examples come last
    if not name:
        assert "130 stopped by Ctrl-C" in " ".join(text.split())


def test_every_command_has_a_file_of_its_name():
    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert files == {*COMMANDS, "__init__"}


@pytest.mark.parametrize(
    ("typed", "answer"), [("clusters", "did you mean cluster?"), ("dance", "the commands are demo, cluster")]
)
def test_a_mistyped_command_gets_a_suggestion(typed, answer):
    done = CliRunner().invoke(main, [typed])
    assert done.exit_code == 2
    assert f"There is no command {typed!r}; {answer}" in done.stderr


def test_version():
    import unpose as package

    done = subprocess.run([sys.executable, "-m", "unpose", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"unpose {package.__version__}"


def test_the_command_installed_is_this_one():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="unpose")
    assert script.value == "unpose.cli:main"
