"""What self-contained HTML pages need: templates, assets, and a content policy that admits only their own scripts."""

import base64
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

_templates = Environment(
    loader=PackageLoader("unpose.report", "assets"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)


def asset(name: str) -> str:
    """Read an asset with the line ends that a browser sees, so that hashes agree."""
    loader = _templates.loader
    text = loader.get_source(_templates, name)[0] if loader else ""
    return text.replace("\r\n", "\n")


def rendered(template: str, style: str, script: str, **values: Any) -> str:
    """Render a template with its style and script, which are the only ones that its content policy admits.

    Bytes of file names that are not valid UTF-8 are escaped.
    """
    page = _templates.get_template(template).render(
        policy=_content_policy(script, style), style=Markup(style), script=Markup(script), **values
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _content_policy(script: str, style: str) -> str:
    """A content security policy that forbids everything but this script, this style and pictures inside the page."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
