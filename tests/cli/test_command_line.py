"""Help, version, and the messages for wrong calls."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unpose.cli import COMMANDS, commands, main


def test_help_explains_ends_with_examples_and_imports_nothing_slow():
    """All commands are asked in one process: what none of them imports, each of them does not import."""
    probe = (
        "import json, sys; from click.testing import CliRunner; from unpose.cli import COMMANDS, main\n"
        "names = ['', *COMMANDS, 'demo learn']\n"
        "texts = {name: CliRunner().invoke(main, [*name.split(), '--help']).output for name in names}\n"
        "print(json.dumps([texts, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    texts, imported = json.loads(done.stdout)
    assert "click" in imported
    assert not {"torch", "numpy", "numba", "PIL", "rich"} & set(imported)
    for name, text in texts.items():
        assert "\n  Examples:\n" in text, name
        examples = text.rpartition("Examples:\n")[2]
        assert examples.count(f"unpose {name}".rstrip()) >= 2, name  # the examples come last
    assert "130 stopped by Ctrl-C" in " ".join(texts[""].split())


def test_a_mistyped_path_is_refused_before_anything_slow_is_imported():
    probe = (
        "import json, sys; from click.testing import CliRunner; from unpose.cli import main\n"
        "calls = ['cluster nowhere -o run', 'align nowhere -o run', 'dedupe nowhere -o run', 'plan nowhere',\n"
        "         'audit mnist-c8 --images nowhere', 'adapt mnist-c8 --images nowhere -o run']\n"
        "done = [CliRunner().invoke(main, call.split()) for call in calls]\n"
        "print(json.dumps([[[each.exit_code, each.output] for each in done], sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    answers, imported = json.loads(done.stdout)
    for status, text in answers:
        assert status == 2, text
        assert "nowhere does not exist; give a folder of images" in " ".join(text.split()), text
    assert not {"torch", "numba"} & set(imported)


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
