"""The page that the command itself wrote: a stranger's folder in, ``report.html`` opened in a real browser."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from unpose.cli import main
from unpose.data import posed

pytestmark = [pytest.mark.browser, pytest.mark.slow]  # runs of the command; test_page.py has the same page without one

EACH = 7
HOSTILE = [
    "<img src=x onerror=document.title='hit'>.png", "<script>document.title='hit'<|script>.png", "=1+1.png",
    "quote\"'&amp;.png", "new\nline.png", "\u202egnp.exe.png",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(browser, tmp_path_factory):  # the browser first: without one there is nothing to run the command for
    """A run of `unpose cluster` on three kinds of things at random pose, hostile names and a torn file among them."""
    things = np.zeros((3, 27, 27), np.float32)
    things[0, 5:21, 12:15] = things[0, 5:8, 12:20] = 1  # a hook
    things[1, 8:19, 8:19] = 1  # a frame
    things[1, 11:16, 11:16] = 0
    things[2, 6:21, 8:11] = things[2, 18:21, 8:19] = things[2, 6:9, 8:14] = 1  # a bracket
    folder = tmp_path_factory.mktemp("input") / "<b>things"
    folder.mkdir()
    copies = posed(things, copies=EACH, max_shift=2.0, random_state=5)
    for number, image in enumerate(copies.images):
        name = HOSTILE[number] if number < len(HOSTILE) else f"{number:03d}.png"
        Image.fromarray((image.clip(0, 1) * 255).astype(np.uint8)).save(folder / name, format="PNG")
    (folder / "torn <td>.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    (folder / "read me.txt").write_text("no image")
    out = tmp_path_factory.mktemp("runs") / "run"
    done = CliRunner().invoke(main, ["cluster", str(folder), "-o", str(out), "--clusters", "3"])
    assert done.exit_code == 0, done.output
    assert str(out / "report.html") in done.stdout
    return out


def rows(text):
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))


def likeness(seen, wanted):
    picture = Image.fromarray(wanted).resize(seen.shape[::-1])
    inner = (slice(5, -5), slice(5, -5))
    return np.corrcoef(seen[inner].ravel(), np.asarray(picture, dtype=float)[inner].ravel())[0, 1]


def test_cards_the_switch_and_what_was_left_out(browser, run):
    browser.open(run / "report.html")
    assert browser.one("h1").text == f"{3 * EACH} images, 3 groups."
    assert "<b>things" in browser.one(".question").text
    assert browser.order() == [0, 1, 2]
    for group in range(3):
        mean = np.asarray(Image.open(run / "means" / f"cluster-{group:03d}.png").convert("L"))
        browser.js("arguments[0].scrollIntoView({ block: 'center' })", browser.group(group))
        assert likeness(browser.seen(f'.card[data-group="{group}"] .mean')[0], mean) > 0.97
        assert f"{EACH} images" in browser.group(group).text
        browser.click(browser.within(group, ".open"))
        assert len(browser.all(".member")) == EACH
        if group == 0:
            as_found = [likeness(tile, mean) for tile in browser.seen(".member .tile")]
            browser.click("#members .switch")
        aligned = [likeness(tile, mean) for tile in browser.seen(".member .tile")]
        assert min(aligned) > 0.9, aligned
        browser.click("#members nav button:last-child")
    assert np.median(as_found) < 0.7
    assert [cell.text for cell in browser.all("#rejected td:first-child")] == ["torn <td>.png"]
    assert "1 file ignored" in browser.one("#reproduce").text
    assert "unpose cluster" in browser.one("#command").text


def test_edits_reach_the_downloads_and_agree_with_the_table_of_the_run(browser, run):
    browser.open(run / "report.html")
    found = rows((run / "labels.csv").read_text())
    name = browser.within(1, ".name")
    name.clear()
    name.send_keys("<i>frames</i>\ue007")
    for group in (0, 2):
        browser.click(browser.within(group, ".select"))
    browser.click("#merge")
    assert browser.order() == [0, 1]
    assert f"{2 * EACH} images" in browser.group(0).text
    browser.click(browser.within(1, ".select"))
    browser.click("#hide")
    assert browser.order() == [0]
    taken = rows(browser.download("#csv"))
    assert [row["path"] for row in taken] == [row["path"] for row in found]
    assert [row["cluster_found"] for row in taken] == [row["cluster"] for row in found]
    assert [row["cluster"] for row in taken] == ["1" if row["cluster"] == "1" else "0" for row in found]
    assert {row["name"] for row in taken if row["cluster"] == "1"} == {"<i>frames</i>"}
    assert [row["hidden"] for row in taken] == ["true" if row["cluster"] == "1" else "false" for row in found]
    for mine, theirs in zip(taken, found, strict=True):
        for part, atol in (("angle", 0.01), ("shift_x", 0.01), ("shift_y", 0.01), ("scale", 1e-3)):
            assert abs(float(mine[part]) - float(theirs[part])) <= atol, part
    exact = json.loads(browser.download("#json"))
    assert {each["cluster"]: each["found_as"] for each in exact["clusters"]} == {0: [0, 2], 1: [1]}


def test_hostile_names_are_inert_and_nothing_is_asked_for(browser, run):
    browser.open(run / "report.html")
    title, scripts = browser.driver.title, len(browser.all("script"))
    browser.js("document.querySelector('#map-canvas').focus()")
    for key in ("\ue014", "\ue015", "\ue012"):  # right, down, left
        browser.press(key)
    for group in range(3):
        browser.click(browser.within(group, ".open"))
        for member in browser.all(".member"):
            browser.js("arguments[0].focus()", member)
        browser.click("#members nav button:last-child")
    browser.click("#play")
    browser.download("#csv")
    assert browser.driver.title == title
    assert len(browser.all("script")) == scripts
    assert not browser.all("main img, main iframe, dialog img, [onerror], main b, main i:not(.across, .down)")
    events = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    asked = {e["params"]["request"]["url"].split(":")[0] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert asked <= {"file", "blob", "data"}
    assert browser.driver.get_log("browser") == []
