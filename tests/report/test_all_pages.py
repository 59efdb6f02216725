"""What holds for every page: names are never markup, and only its own script and style may run."""

import base64
import hashlib
import re
from pathlib import Path

import pytest

from kit.pages import HOSTILE_TEXTS, PAGES, Parsed
from unpose import report


def test_every_template_has_a_page_here():
    assert {path.name.partition(".")[0] for path in Path(report.__file__).parent.rglob("*.html.j2")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_the_same_results_give_the_same_page(name):
    assert PAGES[name]("a") == PAGES[name]("a") != PAGES[name]("b")


@pytest.mark.parametrize("name", PAGES)
def test_hostile_text_is_data_and_never_markup(name):
    def shape(page):
        return [(tag, sorted(attributes)) for tag, attributes in Parsed(page).elements]

    plain = shape(PAGES[name]("plain"))
    for text in HOSTILE_TEXTS:
        page = PAGES[name](text)
        page.encode("utf-8")
        assert shape(page) == plain, text  # not one element, not one attribute more
        assert "<" not in text or text not in page


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_lets_in_this_script_and_this_style_and_nothing_else(name):
    parsed = Parsed(PAGES[name]("plain"))
    policy = next(a["content"] for tag, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(parsed.texts.get(tag, "").encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    for tag, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    script = parsed.texts.get("script", "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
    loaded = set(re.findall(r"https?://[\w./]+", script + parsed.texts["style"]))
    assert loaded <= {"http://www.w3.org/2000/svg"}  # the name of a language, which is not loaded
