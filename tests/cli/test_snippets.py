"""What the pages of the documentation show runs as it stands there.

The ``python`` blocks of a page run in order, in one namespace and in an empty folder; a block that begins with a
comment such as ``# my_model.py`` is saved under that name instead. In ``bash`` blocks, every line that calls ``unpose``
runs in that folder; other lines (``pip``, ``torchrun``) are only shown. A comment before a block changes this:
``<!-- not run: reason -->`` checks only that Python compiles and that the command has these options; ``<!-- slow -->``
leaves the block, and with it the rest of its page, to the slow tests; ``<!-- status 1 -->`` says that the command
answers "no".

What a page says that a snippet prints is compared with what it prints: a ``text`` block with the output of the snippet
or the commands above it, and the comments beside or directly above a ``print`` or another expression with the output or
the value of the statement. A text block gives each piece (``...`` stands for anything) as it is printed, apart from
punctuation and line breaks. Words of a comment explain; its numbers, ``True`` and ``False`` occur in the output in this
order. A number is right if it is

- exactly the same, where the page has an integer, such as a number of images or groups;
- the same within 10 % or 0.02 (2 for per cent), whichever is more, where the page has decimals, a per cent sign, or
  "about", "nearly" or "some" before it: versions of BLAS and numbers of threads change the last digits of fits and
  move a few images of a small test set, changes of the method that readers would notice move more;
- smaller, where the page has "below";
- anything, where it is a time, a size in bytes or a number of cores, which depend on the machine.
"""

import ast
import io
import re
import shlex
import tokenize
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from kit.commands import named
from unpose.cli import main

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted(page for page in (DOCS / "tutorials").glob("*.md") if page.stem != "index")
OTHERS = sorted(page for room in ("howto", "explanation") for page in (DOCS / room).glob("*.md"))
PAGES = [DOCS / "start.md", *TUTORIALS, *OTHERS]
README = DOCS.parent / "README.md"
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>[\w{}-]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
# What is compared: ellipses, figures of the machine, numbers (with what says how exact they are), words.
TOKEN = re.compile(
    r"(?P<rest>\.\.\.)|(?:\b(?P<bound>below|about|nearly|some)\s)?(?<![\w.])(?:"
    r"(?P<machine>\d[\d.,e-]*\s?(?:m?s|min|minutes?|h|hours?|days?|[KMGT]?i?B|cores?)\b)"
    r"|(?P<number>-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)(?P<percent>\s?%)?)|(?P<word>[^\W\d]\w*)"
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
    command, context, others = named(words)
    command.make_parser(context).parse_args(others)


def is_right(shown, printed):
    """Whether a token of a page is that of the output."""
    if not shown["number"] or not printed["number"]:
        return shown.lastgroup == printed.lastgroup and shown["word"] == printed["word"]
    a, b = (float(token["number"].replace(",", "")) for token in (shown, printed))
    if shown["bound"] == "below":
        return b < a
    if not shown["bound"] and not shown["percent"] and re.fullmatch(r"-?[\d,]+", shown["number"]):
        return a == b
    return abs(a - b) <= max(0.1 * abs(a), 2 if shown["percent"] else 0.02)


def is_shown(pieces, printed):
    """Whether pieces, which are lists of tokens, occur in the printed text one after the other."""
    tokens, start = [token for token in TOKEN.finditer(printed) if not token["rest"]], 0
    for piece in pieces:
        ends = range(start + len(piece), len(tokens) + 1)
        found = (end for end in ends if all(map(is_right, piece, tokens[end - len(piece) : end])))
        if (start := next(found, None)) is None:
            return False
    return True


def in_block(text):
    """The pieces of a text block: what stands between ellipses."""
    pieces = [[]]
    for token in TOKEN.finditer(text):
        pieces.append([]) if token["rest"] else pieces[-1].append(token)
    return pieces


def in_comments(statement, comments):
    """The pieces of the comments beside or above the expressions of a statement: numbers, ``True`` and ``False``."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Expr):
            first = node.lineno
            while comments.get(first - 1, "").startswith("#"):
                first -= 1
            said = " ".join(comments.get(line, "") for line in range(first, node.end_lineno + 1))
            yield from ([token] for token in TOKEN.finditer(said) if token["number"] or token[0] in ("True", "False"))


def run_python(source, page, names, output):
    """Run a block statement by statement and compare comments with what is printed; returns all that is printed.

    ``output`` returns what has been printed since its last call. Values of expressions are printed as in a prompt.
    """
    everything = ""
    comments = {  # those that have a line to themselves still begin with their sign
        token.start[0]: token.string if token.line.lstrip().startswith("#") else token.string[1:]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for statement in ast.parse(source).body:
        exec(compile(ast.Interactive([statement]), str(page), "single"), names)
        printed = output()
        assert is_shown(in_comments(statement, comments), printed), (
            f"{page.name}, line {statement.lineno}: the comments are not what is printed:\n{printed}"
        )
        everything += printed
    return everything


def run_page(page, output, *, with_slow):
    """Run the blocks of a page in the current folder; without slow ones, up to the first of them. Returns its names."""
    names, printed = {"__name__": page.stem}, None
    for block in blocks(page):
        if block.mark == "slow" and not with_slow:
            break
        if block.language == "text":
            assert printed is None or is_shown(in_block(block.text), printed), (
                f"{page.name}, line {block.line}: the text is not what is printed:\n{printed}"
            )
        elif block.language in ("python", "bash"):
            printed = None
        if block.mark.startswith("not run"):
            continue
        if file := re.match(r"# (\w+\.py)\n", block.text):
            Path(file[1]).write_text(block.text)
        elif block.language == "python":
            printed = run_python("\n" * block.line + block.text, page, names, output)
        elif block.language == "bash" and calls(block.text):
            for words in calls(block.text):
                status = main(words, standalone_mode=False) or 0
                expected = 1 if block.mark == "status 1" else 0
                assert status == expected, f"unpose {shlex.join(words)} ended with status {status}"
            printed = output()
    return names


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


def test_what_is_printed_is_compared():
    printed = "120 images, 10 groups, in 3.4 s.\nMean confidence 96%: stable.\n(2, 3) [0.83 0.16]\nTrue\n1.2e-07 9.7"

    def holds(text):
        return is_shown(in_block(text), printed)

    assert holds(printed)
    assert holds("120 images,\n10 groups, in 25 minutes. ... confidence 95 % ... (2, 3) [0.85, 0.15] True, below 1e-6")
    assert holds("about 0.16 ... 1.2e-7, about 10")
    for wrong in (
        "121 images", "120 pictures", "120 groups", "groups, in 3.4", "confidence 85 %", "confidence 0.96", "(2, 2)",
        "[0.83 0.19]", "[0.16 0.83]", "[0.83 ... 0.83]", "False", "True, below 1e-7", "9", "stable. ... 120 images",
    ):  # fmt: skip
        assert not holds(wrong), wrong


def test_comments_are_compared(capsys):
    snippet = "n = 5  # of 7\n# {} squared\nprint(n**2, 0.5)  # and {}\nfor k in (0, 1):\n    k == 1  # {}, True\n"
    run_python(snippet.format(25, 0.51, False), DOCS / "page.md", {}, lambda: capsys.readouterr().out)
    for wrong in ((24, 0.51, False), (25, 0.56, False), (25, 0.51, True)):
        with pytest.raises(AssertionError, match=r"page.md, line [34]: the comments are not what is printed"):
            run_python(snippet.format(*wrong), DOCS / "page.md", {}, lambda: capsys.readouterr().out)


def test_text_blocks_are_compared(tmp_path, capsys):
    page = tmp_path / "page.md"
    snippet = "```python\nprint('3 groups')\n```\n\nIt prints this:\n\n```text\n{} groups\n```\n"
    not_run = "\n<!-- not run: too long -->\n```python\n1 / 0\n```\n\n```text\n5 groups\n```\n"
    for number in (3, 4):
        page.write_text(snippet.format(number) + not_run)
        with nullcontext() if number == 3 else pytest.raises(AssertionError, match=r"page.md, line 7: the text is"):
            run_page(page, lambda: capsys.readouterr().out, with_slow=False)


@pytest.fixture
def output(tmp_path, monkeypatch, capsys):
    """Goes to an empty folder, and returns a function for what has been printed since its last call."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: capsys.readouterr().out


@pytest.mark.docs
@pytest.mark.parametrize("page", TUTORIALS, ids=identifier)
def test_tutorials_run(page, output):
    run_page(page, output, with_slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [
    pytest.param(page, marks=[pytest.mark.extra("onnx")] if page.stem == "onnx" else []) for page in PAGES
], ids=identifier)  # fmt: skip
def test_every_block_runs(page, output):
    run_page(page, output, with_slow=True)


@pytest.mark.docs
def test_the_readme_runs(output):
    names = run_page(README, output, with_slow=True)
    assert len(set(zip(names["copies"].sources.tolist(), names["model"].labels_.tolist(), strict=True))) == 3
