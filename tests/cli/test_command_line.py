"""Help, version, and the messages for wrong calls."""

from pathlib import Path

import pytest

from kit.commands import unpose, unpose_process
from unpose.cli import COMMANDS, commands


def test_help_imports_nothing_slow():
    """All commands are asked in one process: what none of them imports, each of them does not import."""
    probe = (
        "import json, sys; from kit.commands import unpose; from unpose.cli import COMMANDS\n"
        "names = ['', *COMMANDS, 'demo learn']\n"
        "texts = {name: unpose(*name.split(), '--help').output for name in names}\n"
        "print(json.dumps([texts, sorted(sys.modules)]))"
    )
    done = unpose_process(program=["-c", probe])
    texts, imported = done.json
    assert "click" in imported
    assert not {"torch", "numpy", "numba", "PIL", "rich"} & set(imported)
    assert "130 stopped by Ctrl-C" in " ".join(texts[""].split())


def test_a_mistyped_path_is_refused_before_anything_slow_is_imported():
    probe = (
        "import json, sys; from kit.commands import unpose\n"
        "calls = ['cluster nowhere -o run', 'align nowhere -o run', 'dedupe nowhere -o run', 'plan nowhere',\n"
        "         'audit mnist-c8 --images nowhere', 'adapt mnist-c8 --images nowhere -o run']\n"
        "done = [unpose(*call.split()) for call in calls]\n"
        "print(json.dumps([[[each.status, each.output] for each in done], sorted(sys.modules)]))"
    )
    done = unpose_process(program=["-c", probe])
    answers, imported = done.json
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
    done = unpose(typed)
    assert done.status == 2
    assert f"There is no command {typed!r}; {answer}" in done.err


def test_version():
    import unpose as package

    assert unpose_process("--version").out.strip() == f"unpose {package.__version__}"


def test_the_command_installed_is_this_one():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="unpose")
    assert script.value == "unpose.cli:main"
