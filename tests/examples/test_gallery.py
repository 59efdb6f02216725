"""The examples of the gallery: each explains itself, imports public names only, ends in a picture, and runs."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from unpose.cli import main
from unpose.groups import CONTINUOUS, SPACE

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.rglob("*.py"))
SECTIONS = ("find", "learn", "adapt", "audit", "groups", "other_worlds")
RECORDED = [path for path in FILES if not path.name.startswith("plot_")]
"""Not run when the site is built: slow, or their packages are not installed."""


def named(paths):
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=pytest.mark.extra("docs")) for path in paths]


def imported_names(tree):
    """(module, name) of every name that a file imports from this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unpose":
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "unpose")


def problems(path, text):
    """What is wrong with the text of an example, in words."""
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree) or ""
    title, underline, *rest = [*docstring.splitlines(), "", ""]
    if not title or underline != "=" * len(title):
        yield "its docstring must begin with a title that is underlined with ="
    if len(" ".join(rest).split()) < 12:
        yield "its docstring must say in a few sentences what is shown"
    if not 10 <= len(text.splitlines()) <= 85:
        yield f"an example has 10 to 85 lines, not {len(text.splitlines())}"
    for module, name in imported_names(tree):
        if name is None or name not in getattr(import_module(module), "__all__", ()):
            yield f"{module}.{name} is no public name"
    is_recorded = not path.name.startswith("plot_")
    if is_recorded and path.name != "lightning_module.py":
        pictures = [line.split("::")[1].strip() for line in text.splitlines() if line.startswith(".. image::")]
        if len(pictures) != 1 or not (EXAMPLES.parent / "docs" / pictures[0].lstrip("/")).is_file():
            yield "what is not run needs a recorded picture below docs/"
        if "sphinx_gallery_thumbnail_path" not in text:
            yield "what is not run names its thumbnail"
    if not is_recorded and not text.rstrip().endswith("plt.show()"):
        yield "it must end in a picture"


def test_every_example_explains_itself_and_uses_public_names():
    found = {str(path): said for path in FILES if (said := list(problems(path, path.read_text(encoding="utf-8"))))}
    assert not found


def test_a_bad_example_would_be_seen():
    text = '"""No title."""\nfrom unpose.groups.poses import inverse\nimport unpose.align\n'
    said = " ".join(problems(Path("plot_bad.py"), text))
    for part in ("title", "sentences", "lines", "unpose.align.None", "picture"):
        assert part in said
    assert "no public name" in " ".join(problems(Path("plot_bad.py"), "from unpose.groups import _hidden"))


def test_there_are_enough_in_sections_with_headers():
    assert len(FILES) - len(RECORDED) >= 25
    assert {path.parent.name for path in FILES} == set(SECTIONS)
    assert all((folder / "GALLERY_HEADER.rst").is_file() for folder in [EXAMPLES, *(EXAMPLES / s for s in SECTIONS)])


def test_every_group_has_a_picture():
    shown = {path.stem.removeprefix("plot_") for path in (EXAMPLES / "groups").glob("plot_*.py")}
    assert {*CONTINUOUS, *SPACE, "c4", "c8", "d4", "dilations", "o3"} <= shown


def test_every_command_has_a_picture():
    shown = {path.stem.removeprefix("plot_").removeprefix("command_") for path in FILES if "command_" in path.stem}
    missing = set(main.list_commands(None)) - shown
    assert not missing, f"no example of {', '.join(sorted(missing))}"


@pytest.mark.slow
@pytest.mark.parametrize("path", named(FILES))
def test_every_example_runs(path, tmp_path):
    """In a process of its own, as a reader would run it; the figure it ends with is not empty."""
    if path.name == "lightning_module.py" and find_spec("lightning") is None:
        pytest.skip("lightning, which is in no extra, is not installed")
    program = (
        "import runpy, sys\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
        "import matplotlib.pyplot as plt\n"
        "for number in plt.get_fignums():\n"
        "    plt.figure(number).savefig(f'{number}.png')\n"
    )
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "BROWSER": "true"}  # opens none
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "1.png").is_file() or path in RECORDED
    if (tmp_path / "1.png").is_file():
        from PIL import Image

        with Image.open(tmp_path / "1.png") as picture:
            assert picture.width >= 400
            assert len(picture.convert("RGB").getcolors(10**7)) > 16
