"""The sources of the site: every page can be reached, every link leads somewhere, every room is in the reference.

`make docs` builds the site and checks more; these tests need no Sphinx.
"""

import fnmatch
import re
from pathlib import Path

import pytest

import unpose

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Written while the site is built: the gallery from examples/, the reference from docstrings and help texts.
GENERATED = ("gallery/*", "reference/rooms/*", "reference/backreferences/*", "reference/commands.md", "_build/*")


def is_generated(path):
    return any(fnmatch.fnmatch(path.relative_to(DOCS).as_posix(), pattern) for pattern in GENERATED)


PAGES = sorted(path for path in DOCS.rglob("*.md") if not is_generated(path))
TOP_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CONVENTIONS.md", "CHANGELOG.md")]


def listed(page):
    """The pages that the toctrees of a page lead to, generated ones included, as paths without suffix."""
    found = set()
    for options, entries in re.findall(r"```\{toctree\}\n((?::.*\n)*)((?:.*\n)*?)```", page.read_text()):
        for entry in entries.split("\n"):
            name = re.sub(r".*<(.*)>", r"\1", entry.strip())
            if ":glob:" in options and "*" in name:
                found |= {path.with_suffix("") for path in page.parent.glob(f"{name}.md")} - {page.with_suffix("")}
            elif name:
                found.add((page.parent / name).resolve())
    return found


def links(page):
    """The relative links and pictures in the text of a page."""
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


def anchors(page):
    """The names of the headings of a page in links, which are those of GitHub."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_a_toctree():
    reached = {(DOCS / "index").resolve()}.union(*map(listed, PAGES))
    missing = [path.relative_to(DOCS).as_posix() for path in PAGES if path.with_suffix("") not in reached]
    assert not missing, f"no toctree leads to {missing}"


def test_every_toctree_entry_is_a_page():
    for page in PAGES:
        for name in listed(page):
            there = name.with_name(f"{name.name}.md")
            assert there.is_file() or is_generated(there), f"{page.name} lists {name.name}, which is not there"


@pytest.mark.parametrize("page", [*PAGES, *TOP_PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if DOCS in target.parents and is_generated(target):
            continue
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}, but that page has no such heading"


@pytest.mark.parametrize("page", [*PAGES, *TOP_PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_line_is_taken_for_a_comment_or_a_list(page):
    """MyST leaves out lines that begin with a per cent sign, and a minus there begins a list."""
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(), flags=re.M | re.S)
    assert not re.findall(r"^%.*|^[\w(\"`*].*\n- .*", text, re.M)


def test_links_and_toctrees_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "[a](b.md#c) `[no](x)` ![p](q.png) [web](https://x.y)\n```{toctree}\n:hidden:\n\none\nTwo <two>\n```\n"
    )
    assert links(page) == ["b.md#c", "q.png"]
    assert listed(page) == {tmp_path / "one", tmp_path / "two"}


def test_every_room_is_in_the_reference():
    text = (DOCS / "reference" / "index.md").read_text()
    rooms = [name for name in unpose.__all__ if (Path(unpose.__file__).parent / name).is_dir()]
    assert len(rooms) > 15
    for room in rooms:
        assert f"\n   unpose.{room}\n" in text, f"the reference has no unpose.{room}"


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
