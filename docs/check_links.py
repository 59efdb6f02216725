"""Check the built site: every link and picture leads somewhere, and a page loads nothing from a network.

    python docs/check_links.py docs/_build/html

Sphinx checks the links that it resolves itself; this also sees those in HTML that examples, docstrings and the theme
bring along.
"""

import os
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "src", "video": "src", "iframe": "src", "link": "href"}


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if LOADED.get(tag) in found:
            self.loaded.append(found[LOADED[tag]])
        elif tag == "a" and "href" in found:
            self.links.append(found["href"])


@cache
def file_of(folder: Path, link: str) -> Path | None:
    """The file that a relative link leads to from a folder, or None."""
    target = Path(os.path.normpath(folder / unquote(link)))
    target = target / "index.html" if target.is_dir() else target
    return target if target.is_file() else None


def problems(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere and for each thing that is loaded from a network."""
    pages = {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {url}" for url in page.loaded if urlsplit(url).scheme in ("http", "https")]
        for url in [*page.links, *page.loaded]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = file_of(path.parent, parts.path) if parts.path else path
            if target is None:
                found.append(f"{name} links to {url}, which is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {url}, but {target.name} has no such place")
    return sorted(set(found))


if __name__ == "__main__":
    if lines := problems(Path(sys.argv[1]).resolve()):
        sys.exit("\n".join(lines))
