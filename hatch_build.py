"""Put the documentation into the wheel, where `unpose docs` finds it: the built site, or else its Markdown pages."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Documentation(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the pages of the repository are used
            return
        docs = Path(self.root, "docs")
        if (docs / "_build" / "html" / "index.html").is_file():
            build_data["force_include"][str(docs / "_build" / "html")] = "unpose/site"
            return
        for path in [*docs.glob("*.md"), *docs.glob("*/*.md"), *docs.glob("*/*.png")]:
            build_data["force_include"][str(path)] = f"unpose/site/{path.relative_to(docs).as_posix()}"
