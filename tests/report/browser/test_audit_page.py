"""The page of an audit in a real browser: light and dark, on a telephone, and by keyboard."""

import math

import numpy as np
import pytest

from unpose.files import write_text
from unpose.report import Reproduction
from unpose.report.audit import (
    AuditedClass,
    AuditedElement,
    AuditedModule,
    AuditResults,
    Repair,
    WorstImage,
    render_audit,
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def audit_page(browser, tmp_path_factory):
    rng = np.random.default_rng(0)
    turns = [
        AuditedElement(f"turn {d}", d % 90 == 0, 0.3, 0.1, 0.5 * abs(math.sin(math.radians(d))), 0.02, 0.9, float(d))
        for d in range(0, 360, 15)
    ]
    picture = np.zeros((21, 21))
    picture[3:9, 4:18] = 1
    results = AuditResults(
        model="a model with a long name that must not widen the page.onnx", group="c24", images="photos", count=120,
        elements=turns, control=AuditedElement("mirror", True, 0.4, 0.0, 0.3, 0.0, 0.5), discrimination=0.8,
        tolerance=1e-5, reproduction=Reproduction("unpose audit " + "x" * 90, 0, "1.2.3"), angles=turns,
        angles_count=64, classes=[AuditedClass("c" * 60, 40, "turn 90", 0.6, 0.1, 0.9, 0.7)],
        modules=[AuditedModule("layer1.0." + "block." * 9, "Conv2d", 2, 0.3, True, "loses a row")],
        worst_images=[WorstImage(f"{i}.png", "turn 90", "up", "side", picture, np.rot90(picture)) for i in range(3)],
        repairs=[Repair("the model as it is", 0.9, 0.6, 0.5, 1.0), Repair("mean over c24", 0.9, 0.9, 0.0, 24.0, True)],
        repair_images=(60, 60), advice="It would help. " * 9,
        remarks=[f"noise {rng.random():.3f}"],
    )  # fmt: skip
    return write_text(tmp_path_factory.mktemp("audit") / "report.html", render_audit(results))


@pytest.mark.parametrize(
    ("theme", "width"), [("dark", 1200), ("light", 390), pytest.param("light", 1200, marks=pytest.mark.slow)]
)
def test_it_fits_the_window_without_errors(browser, audit_page, theme, width):
    browser.open(audit_page, theme=theme, width=width)
    assert not browser.driver.get_log("browser")
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.js("return [...document.images].every(i => i.naturalWidth > 0)")
    dark = browser.screen().mean() < 100
    assert dark == (theme == "dark")
    box = browser.js("const b = document.querySelector('h1').getBoundingClientRect(); return [b.width, b.height]")
    assert box[0] > 0.6 * min(width, 700)


def test_the_pictures_show_what_was_turned(browser, audit_page):
    browser.open(audit_page)
    browser.js("document.querySelector('.audit-worst').scrollIntoView()")
    upright, turned = browser.seen(".audit-worst img")[:2]
    assert np.corrcoef(np.rot90(upright).ravel(), turned.ravel())[0, 1] > 0.9


def test_the_theme_switches_and_points_can_be_read(browser, audit_page):
    browser.open(audit_page)
    assert browser.one("#theme").text == "Dark"
    before = browser.screen().mean()
    browser.click("#theme")
    assert browser.screen().mean() < before - 100
    browser.js("document.querySelectorAll('.audit-polar .dot')[6].focus()")
    assert browser.one("#audit-reading").text == "90°: 50 %, interpolation alone 2 %."
    first, second = (
        browser.js("return document.querySelectorAll('.audit-polar .dot')[arguments[0]].getBoundingClientRect().x", i)
        for i in (6, 18)
    )
    assert first < second  # 90 degrees, counter-clockwise from the top, is on the left
