"""Results as JUnit XML, which continuous integration services read."""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr


def junit_text(suite: str, cases: Sequence[tuple[str, str]]) -> str:
    """A test suite with one case for each name; a case with a message has failed."""
    failed = sum(bool(message) for _, message in cases)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<testsuites>",
        f'<testsuite name={_quoted(suite)} tests="{len(cases)}" failures="{failed}" errors="0" skipped="0">',
    ]
    for name, message in cases:
        head = f"<testcase classname={_quoted(suite)} name={_quoted(name)}"
        if message:
            lines.append(f"{head}><failure message={_quoted(message)}>{escape(_valid(message))}</failure></testcase>")
        else:
            lines.append(f"{head}/>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>", ""])


def _quoted(text: str) -> str:
    return quoteattr(_valid(text))


def _valid(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or "\x20" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?"
                   for c in text)  # fmt: skip
