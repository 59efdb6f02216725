"""Where the documentation is on this computer: in the package, or in the copy of the repository that is used."""

from pathlib import Path

import unpose

_PACKAGE = Path(unpose.__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]


def folders() -> list[Path]:
    """Return the folders that hold pages, the best one first: the built site, then the sources of the pages."""
    found = [_PACKAGE / "site"]
    if (_CHECKOUT / "docs" / "conf.py").is_file():
        found = [_CHECKOUT / "docs" / "_build" / "html", _CHECKOUT / "docs", *found]
    return [folder for folder in found if folder.is_dir()]


def find_page(page: str) -> Path | None:
    """Return the file of a page such as "howto/audit", as HTML or as Markdown, or None if there is none."""
    for folder in folders():
        for suffix in (".html", ".md"):
            if (path := folder / f"{page}{suffix}").is_file():
                return path
    return None


def page_line(page: str, command: str = "") -> str:
    """Return the last line of a help text: the address of its page, unwrapped."""
    path, opener = find_page(page), f"unpose docs {command}" if page != "index" else "unpose docs"
    if path is None:
        return f"Documentation: `{opener}`"
    return f"\b\nDocumentation (`{opener}` opens it):\n  {path.as_uri()}"
