"""What the pages of the documentation show runs as it stands there.

The ``python`` blocks of a page run in order, in one namespace and in an empty folder; a block that begins with a
comment such as ``# my_model.py`` is saved under that name instead. In ``bash`` blocks, every line that calls ``unpose``
runs in that folder; other lines (``pip``, ``torchrun``) are only shown. A comment before a block changes this:
``<!-- not run: reason -->`` checks only that Python compiles and that the command has these options; ``<!-- slow -->``
leaves the block, and with it the rest of its page, to the slow tests; ``<!-- status 1 -->`` says that the command
answers "no".
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from unpose.cli import main

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted(page for page in (DOCS / "tutorials").glob("*.md") if page.stem != "index")
LONG = {"is-it-invariant", "plankton"}  # tutorials that only the slow tests run
OTHERS = sorted(page for room in ("howto", "explanation") for page in (DOCS / room).glob("*.md"))
PAGES = [DOCS / "start.md", *TUTORIALS, *OTHERS]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>[\w{}-]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    mark: str
    language: str
    text: str
    line: int


def blocks(page):
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text"))
        yield Block(found["mark"] or "", found["language"], found["text"], line)


def calls(text):
    """The words of every line that calls ``unpose``, without comments."""
    lines = (shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines())
    return [words[1:] for words in lines if words[:1] == ["unpose"]]


def check_call(words):
    """Raise if the command or an option of it does not exist. Nothing is run, and no file needs to be there."""
    command, context = main, click.Context(main, info_name="unpose")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, words = words[0], words[1:]
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name}"
        context = click.Context(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(list(words))


def run_page(page, *, with_slow):
    """Run the blocks of a page in the current folder; without slow ones, up to the first of them."""
    names = {"__name__": page.stem}
    for block in blocks(page):
        if block.mark.startswith("not run"):
            continue
        if block.mark == "slow" and not with_slow:
            return
        if file := re.match(r"# (\w+\.py)\n", block.text):
            Path(file[1]).write_text(block.text)
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        elif block.language == "bash":
            for words in calls(block.text):
                status = main(words, standalone_mode=False) or 0
                expected = 1 if block.mark == "status 1" else 0
                assert status == expected, f"unpose {shlex.join(words)} ended with status {status}"


def identifier(page):
    return str(page.relative_to(DOCS).with_suffix(""))


def test_the_blocks_are_found():
    assert len(TUTORIALS) >= 5
    assert all(len(list(blocks(page))) >= 3 for page in TUTORIALS)
    assert calls("unpose cluster a/ \\\n  -o run   # a comment\npip install x\n") == [["cluster", "a/", "-o", "run"]]
    with pytest.raises(click.NoSuchOption):
        check_call(["cluster", "photos/", "--no-such-option"])


@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_commands_exist_and_python_compiles(page):
    for block in blocks(page):
        assert block.language, f"{page.name}, line {block.line}: a block needs a language"
        if block.language == "python":
            compile(block.text, str(page), "exec")
        for words in calls(block.text) if block.language == "bash" else ():
            check_call(words)


@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem not in LONG], ids=identifier)
def test_tutorials_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_page(page, with_slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_every_block_runs(page, tmp_path, monkeypatch):
    if page.stem == "onnx":  # needs the extra of this name
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_page(page, with_slow=True)
