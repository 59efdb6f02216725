"""The page of an audit as text: its sections, its verdict, and names that are never interpreted as markup."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from unpose.report import Rejected, Reproduction
from unpose.report.audit import (
    AuditedClass,
    AuditedElement,
    AuditedModule,
    AuditResults,
    Comparison,
    LayerShare,
    RealPairs,
    Repair,
    WorstImage,
    headline,
    percent,
    render_audit,
    sentences,
)
from unpose.report.audit.polar import polar_plot


def elements(*changed, accuracy=None):
    rows = zip(("identity", "turn 90", "turn 180", "turn 270"), changed, strict=True)
    return [AuditedElement(name, True, share / 2, 0.0, share, 0.0, accuracy) for name, share in rows]


def results(**changes):
    one, two = np.random.default_rng(0).random((2, 9, 9))
    angles = [
        AuditedElement(f"turn {d}", d % 90 == 0, 0.2, 0.1, abs(math.sin(math.radians(d))) / 2, 0.02, None, float(d))
        for d in range(0, 360, 15)
    ]
    made = AuditResults(
        model="model.onnx",
        group="c4",
        images="photos",
        count=200,
        elements=elements(0.0, 0.07, 0.02, 0.06, accuracy=0.9),
        control=AuditedElement("mirror", True, 0.4, 0.0, 0.3, 0.0, 0.5),
        discrimination=0.8,
        tolerance=1e-5,
        reproduction=Reproduction("unpose audit model.onnx", 3, "1.2.3", {"batch": 64}),
        angles=angles,
        angles_count=64,
        classes=[AuditedClass("fish", 40, "turn 90", 0.31, 0.0, 0.9, 0.7), AuditedClass("few", 2, "turn 90", 1.0, 0.0)],
        modules=[AuditedModule("pool", "MaxPool2d", 1, 0.3, True), AuditedModule("head", "Linear", 1, 0.0, False)],
        shares=[LayerShare("pool", "MaxPool2d", 0.8, "aliasing"), LayerShare("head", "Linear", 0.2)],
        worst_images=[WorstImage("a.png", "turn 90", "fish", "bird", one, two, "fish", 0.9, 0.6)],
        repairs=[Repair("the model as it is", 0.9, 0.6, 0.07, 1.0), Repair("mean over c4", 0.9, 0.9, 0.0, 4.0, True)],
        repair_images=(50, 50),
        advice="The mean over c4 would help.",
        labelled=True,
        comparison=Comparison("old.onnx", [("turn 90", 0.2, 0.07)], 0.1, [("b.png", "fish", "bird")]),
        pairs=RealPairs(20, 0.3, 0.2, 0.1, 0.25, 0.1, 0.0, [("c.png", "d.png", "fish", "bird")]),
        failures=[Rejected("torn.png", "truncated")],
        remarks=["A remark."],
    )  # fmt: skip
    return replace(made, **changes)


def test_every_part_is_on_the_page():
    page = render_audit(results())
    for text in (
        "That is 14 of 200 images",
        "Worst is the class &#39;fish&#39;: 31\u00a0% of its 40 images",
        "The first module that breaks the symmetry is &#39;pool&#39; (MaxPool2d), and no later one does.",
        "Of the change under small rotations, 80\u00a0% arises in &#39;pool&#39; (MaxPool2d), by aliasing.",
        "The mean over c4 would help.", "In 25\u00a0% of 20 real pairs", "Compared with old.onnx",
        "torn.png", "A remark.", "unpose audit model.onnx", "turned by 90 degrees", "recommended",
    ):  # fmt: skip
        assert text in page, text
    assert page.count(headline(results()).replace(" %", "\u00a0%")) == 1
    assert page == render_audit(results())


def test_parts_that_were_not_measured_are_not_on_the_page():
    bare = results(
        elements=[AuditedElement("identity", True, 0.0, 0.0), AuditedElement("turn 45", False, 0.3, 0.1)],
        control=AuditedElement("mirror", True, 0.4, 0.0), angles=(), classes=(), modules=(), shares=(),
        worst_images=(), repairs=(), advice="", comparison=None, pairs=None, failures=(), remarks=(),
    )  # fmt: skip
    page = render_audit(bare)
    sections = re.findall(r'<section id="([^"]+)"', page)
    assert sections == ["audit-elements", "reproduce"]
    assert "Resampling alone, without turning, changes it by 10\u00a0%" in page


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "7 % of the answers change when the picture is turned by 90 degrees."),
        ({"elements": elements(0.0, 0.0, 0.0, 0.0)}, "The answers do not change."),
        ({"nearly_constant": True}, "The model gives the same answer to every image."),
        ({"elements": [AuditedElement("identity", True, 0, 0), AuditedElement("mirror", True, 0, 0)]},
         "The output does not change."),
        ({"elements": [AuditedElement("identity", True, 0, 0), AuditedElement("turn 9", False, 0.2, 0.1)]},
         "The output changes by 20 % when the picture is turned by 9 degrees."),
    ],
)  # fmt: skip
def test_the_headline(changes, expected):
    assert headline(results(**changes)) == expected


def test_a_class_with_few_images_is_not_called_the_worst():
    assert not any("'few'" in sentence for sentence in sentences(results()))


def test_random_answers_are_stated():
    assert "5 % of the answers change even when the same picture is shown again." in sentences(
        results(elements=elements(0.05, 0.07, 0.02, 0.06))
    )


@pytest.mark.parametrize("limit", [0.003, 0.05, 0.26, 1.0, 2.7])
def test_the_polar_plot_holds_its_curves(limit):
    degrees = [0.0, 90.0, 180.0, 270.0]
    plot = polar_plot(degrees, [[limit, limit / 2, 0.0, math.nan]], 0.001)
    assert plot.limit >= limit
    assert plot.limit <= 2.5 * limit
    up, left, centre, missing = plot.points[0]
    assert up[0] == pytest.approx(0)
    assert -90 <= up[1] < -36  # an angle of zero points up
    assert left[0] == pytest.approx(up[1] / 2, abs=0.02)  # and angles grow counter-clockwise
    assert centre == missing == (0, 0)
    assert plot.rings[-1] == pytest.approx((90, plot.limit))


def test_percentages_never_hide_a_change():
    assert percent(1e-9) == "0.1 %"
    assert percent(0.9999) == "99 %"
    assert percent(math.inf) == "more than can be said"
