"""One door to a folder: who may open, write, move or remove files by their paths, and why.

Folders of results are data, perhaps of a stranger, and are read and written through :class:`unpose.files.Folder`, which
follows no link in them. Every other call that touches a file by its path stands here with its reason.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

import unpose

SOURCE = Path(unpose.__file__).parent
FUNCTIONS = {"open", "rmtree", "copyfile", "copytree", "mkstemp", "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile"}
METHODS = {"open", "unlink", "rmdir", "write_text", "write_bytes", "mkdir", "touch", "read_text", "read_bytes"}
OF_MODULES = {
    "os": {
        "open",
        "replace",
        "remove",
        "rename",
        "unlink",
        "rmdir",
        "mkdir",
        "makedirs",
        "link",
        "symlink",
        "truncate",
    },
    "shutil": {"rmtree", "copyfile", "copytree", "copy", "copy2", "move"},
    "tempfile": {"mkstemp", "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile"},
}
OPENERS = {"Folder", "folder", "folder_lock", "_locked", "_claimed", "_opened", "_parent", "_inner"}
"""Calls that give an opened folder, whose own methods are the door."""

NAMED_BY_THE_USER = "a file that the user names on the command line or in Python"
EXCEPTIONS = {
    "files.folder": "the door",
    "files.outputs": NAMED_BY_THE_USER,
    "files.exchange": "a temporary folder for a program that the user names",
    "files.pieces": "a temporary folder of its own; scratch files of runs go through the door",
    "files.byte_sizes": "files of the system that say how much memory is free",
    "cli": "the log of an unexpected error, in the folder of temporary files",
    "cli.commands.adapt": NAMED_BY_THE_USER + "; results after folder_lock has found no link",
    "cli.commands.apply": NAMED_BY_THE_USER,
    "cli.commands.audit": "the folder of answers, after folder_lock has found no link",
    "cli.commands.cluster": NAMED_BY_THE_USER,
    "cli.commands.demo": "its own digits, which are compared before they are replaced",
    "cli.commands.docs": "a browser",
    "cli.commands.export": "the folder of an archive that the user names, and members of the archive",
    "cli.commands.reproduce": NAMED_BY_THE_USER,
    "cli.commands.train": "after folder_lock has found no link",
    "cli.shared.any_model": NAMED_BY_THE_USER,
    "cli.shared.audited_images": NAMED_BY_THE_USER,
    "cli.shared.train_output": "after folder_lock has found no link",
    "runs.folder": "an empty folder of results is removed",
    "runs.settings": NAMED_BY_THE_USER,
    "runs.duplicates": "photographs that the user names",
    "runs.remembered_calls": "after folder_lock has found no link",
    "train.cards": "networks of the package",
    "train.checkpoint": NAMED_BY_THE_USER + "; in runs after folder_lock has found no link",
    "train.loop": "after folder_lock has found no link",
    "train.recipe": NAMED_BY_THE_USER,
    "train.state": "after folder_lock has found no link",
}
READERS = {"arrays", "clouds", "fits", "formats", "pictures", "stacks", "star", "tiff", "zarr", "model_files"}
"""Modules of ``unpose.files`` that read images, tables and models, which the user names."""


def folder_names(tree):
    """Names that a module binds to an opened folder: by ``with`` or by an annotation."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.withitem)
            and node.optional_vars is not None
            and isinstance(node.context_expr, ast.Call)
        ):
            function = node.context_expr.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in OPENERS or (called == "enter_context" and "folder(" in ast.unparse(node.context_expr)):
                yield from (each.id for each in ast.walk(node.optional_vars) if isinstance(each, ast.Name))
        elif isinstance(node, ast.arg) and "Folder" in ast.unparse(node.annotation or ast.Constant("")).strip(
            "'\""
        ).split(" | "):
            yield node.arg
        elif isinstance(node, ast.Assign) and "enter_context(" in ast.unparse(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def calls_by_path(tree):
    """Every call of a module that touches a file by its path: its line and its text."""
    folders = set(folder_names(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            yield node.lineno, node.func.id
        elif isinstance(node.func, ast.Attribute):
            receiver, name = ast.unparse(node.func.value), node.func.attr
            if name in OF_MODULES.get(receiver, METHODS if receiver not in folders else ()):
                yield node.lineno, f"{receiver}.{name}"


@cache
def found():
    """Module -> its calls."""
    calls = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        calls[module] = list(calls_by_path(ast.parse(path.read_text(encoding="utf-8"))))
    return calls


def is_reader(module):
    room, _, name = module.partition(".")
    return room == "files" and name in READERS


def test_files_are_touched_through_the_door_or_for_a_reason():
    for module, calls in found().items():
        if calls and module not in EXCEPTIONS and not is_reader(module):
            line, call = calls[0]
            pytest.fail(f"{module}:{line} calls {call}: use unpose.files.Folder, or give a reason in this file")


def test_every_exception_is_still_one():
    calls = found()
    assert [module for module in EXCEPTIONS if not calls.get(module)] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def sneak(path):\n    path.open()\n    open(path)\n    os.replace(path, path)\n    shutil.rmtree(path)", 4),
        ("with Folder(path) as place, place.open('a') as stream:\n    place.write_text('a', 'b')", 0),
        ("def write(folder: 'Folder'):\n    folder.write_text('a', 'b')\n    'a'.replace('b', 'c')", 0),
        ("def write(folder: Path):\n    folder.write_text('a')", 1),
    ],
)
def test_a_call_by_path_would_be_seen(text, count):
    assert len(list(calls_by_path(ast.parse(text)))) == count
