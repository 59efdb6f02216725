"""The page in a real browser: what people see, press and take home, and what a stranger's file names cannot do."""

import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from kit.commands import table
from kit.pages import HOSTILE_TEXTS
from unpose.files import write_text
from unpose.report import Rejected, Reproduction
from unpose.report import page as of_cluster

pytestmark = pytest.mark.browser

ENTER, SPACE, ESCAPE, TAB, RIGHT, LEFT, DOWN = "\ue007", " ", "\ue00c", "\ue004", "\ue014", "\ue012", "\ue015"
CONTROL = "\ue009"


def shot(element):
    return np.asarray(Image.open(io.BytesIO(element.screenshot_as_png)).convert("L"), dtype=float)


def likeness(seen, expected):
    """Correlation of a screenshot with an image (h, w) brought to its size, without the rounded corners."""
    wanted = Image.fromarray((np.clip(expected, 0, 1) * 255).astype(np.uint8)).resize(seen.shape[::-1])
    inner = (slice(5, -5), slice(5, -5))
    return np.corrcoef(seen[inner].ravel(), np.asarray(wanted, dtype=float)[inner].ravel())[0, 1]


def test_cards_show_every_group_sorted_as_asked(browser, page):
    browser.open(page)
    assert browser.one("h1").text == "35 images, 3 groups."
    assert browser.order() == [0, 1, 2, -1]  # by size, those in no group last
    assert "17 images" in browser.group(0).text
    assert "70% confidence" in browser.group(0).text
    assert "not symmetric" in browser.group(0).text
    assert "symmetric: mirror" in browser.group(1).text
    browser.click("#sort option[value=confidence]")
    assert browser.order() == [1, 2, 0, -1]


def test_cards_show_the_mean_and_its_error(browser, page, found):
    browser.open(page)
    for c, cluster in enumerate(found.clusters):
        assert likeness(shot(browser.within(c, ".mean")), cluster.mean) > 0.97
        assert likeness(shot(browser.within(c, ".error")), cluster.error / cluster.error.max()) > 0.9


def test_the_switch_brings_each_image_onto_the_mean(browser, page, found):
    browser.open(page)
    browser.click(browser.within(0, ".open"))
    assert len(browser.all(".member")) == 17
    assert "17 images" in browser.one("#members").text
    mean = found.clusters[0].mean
    as_found = [likeness(tile, mean) for tile in browser.seen(".member .tile")]
    blurred = likeness(browser.seen(".stack")[0], mean)
    browser.click("#members .switch")
    assert browser.one("#members .switch").get_attribute("aria-checked") == "true"
    aligned = [likeness(tile, mean) for tile in browser.seen(".member .tile")]
    sharp = likeness(browser.seen(".stack")[0], mean)
    assert min(aligned) > 0.93, aligned
    assert np.median(as_found) < 0.7
    assert sharp > 0.97
    assert blurred < 0.9
    browser.click("#members .switch")
    np.testing.assert_allclose([likeness(tile, mean) for tile in browser.seen(".member .tile")], as_found)


def test_the_transform_of_a_tile_is_its_pose(browser, page, found):
    browser.open(page)
    browser.click(browser.within(1, ".open"))
    browser.click("#members .switch")
    seen = browser.js(
        "return [...document.querySelectorAll('.member .poseable')].map(e => "
        "[getComputedStyle(e).transform, e.offsetWidth])"
    )
    ranked = sorted(np.flatnonzero(found.labels == 1), key=lambda i: -found.confidences[i])
    for image, (transform, width) in zip(ranked, seen, strict=True):
        a, b, c, d, x, y = map(float, re.findall(r"-?[\d.]+(?:e-?\d+)?", transform))
        unit = width / found.images.shape[2]
        np.testing.assert_allclose([[a, c, x / unit], [b, d, y / unit]], found.poses[image][:2], atol=2e-3)


def test_the_turn_is_a_motion_unless_motion_is_unwanted(browser, page):
    turn = "return getComputedStyle(document.querySelector('#story .poseable')).transform"
    browser.open(page, motion="no-preference")
    start = browser.js(turn)
    # The motion stands still from its first frame on, however long a busy browser takes to answer; time is set by hand.
    browser.js(
        "document.addEventListener('transitionrun', e => { for (const a of e.target.getAnimations()) a.pause(); })"
    )
    browser.click(".switch")
    running = "return document.getAnimations().filter(a => a.transitionProperty === 'transform').length"
    assert browser.js(running) > 10
    # Half way through, the image is between its two poses.
    browser.js("for (const a of document.getAnimations()) a.currentTime = 500")
    between = browser.js(turn)
    browser.js("for (const a of document.getAnimations()) a.finish()")
    assert len({start, between, browser.js(turn)}) == 3
    browser.open(page, motion="reduce")
    browser.click(".switch")
    assert browser.js(running) == 0
    assert browser.js(turn) != start


def test_rename_merge_hide_and_undo_reach_the_downloads(browser, page, found):
    browser.open(page)
    name = browser.within(2, ".name")
    name.clear()
    name.send_keys("drapeau, “é” \u65d7", ENTER)
    for c in (1, 2):
        browser.click(browser.within(c, ".select"))
    browser.click("#merge")
    assert browser.order() == [0, 1, -1]
    assert "16 images" in browser.group(1).text
    assert "Merged" in browser.one("#status").text
    browser.click(browser.within(0, ".select"))
    browser.click("#hide")
    assert browser.order() == [1, -1]

    rows = table(browser.download("#csv"))
    assert [row["path"] for row in rows] == list(found.names)
    merged = np.where(found.labels == 2, 1, found.labels)
    assert [int(row["cluster"]) for row in rows] == merged.tolist()
    assert [int(row["cluster_found"]) for row in rows] == found.labels.tolist()
    assert [row["hidden"] for row in rows] == ["true" if label == 0 else "false" for label in found.labels]
    exact = json.loads(browser.download("#json"))
    assert {c["cluster"]: c["found_as"] for c in exact["clusters"]} == {0: [0], 1: [1, 2]}
    assert exact["seed"] == 3

    browser.click("#undo")
    browser.click("#undo")
    assert browser.order() == [0, 1, 2, -1]
    renamed = table(browser.download("#csv"))
    assert {row["name"] for row in renamed} == {"Group 0", "Group 1", "drapeau, “é” \u65d7", ""}
    browser.press("z", holding=CONTROL)
    assert browser.within(2, ".name").get_attribute("value") == "Group 2"
    assert not browser.one("#undo").is_enabled()


def test_hidden_groups_can_be_shown_again(browser, page):
    browser.open(page)
    browser.click(browser.within(1, ".select"))
    browser.click("#hide")
    assert browser.order() == [0, 2, -1]
    browser.click("#show-hidden")
    assert browser.order() == [0, 1, 2, -1]
    browser.click(browser.within(1, ".select"))
    assert browser.one("#hide").text == "Show again 1"
    browser.click("#hide")
    assert not browser.one("#show-hidden").is_displayed()
    assert browser.order() == [0, 1, 2, -1]


def test_a_merged_group_opens_with_the_images_of_both(browser, page):
    browser.open(page)
    for c in (0, 2):
        browser.click(browser.within(c, ".select"))
    browser.click("#merge")
    browser.click(browser.within(0, ".open"))
    assert len(browser.all(".member")) == 22
    assert len(browser.all(".stack")) == 2


def test_the_table_holds_the_poses(browser, page, found):
    rows = table(browser.open(page).download("#csv"))
    exact = json.loads(browser.download("#json"))["images"]
    assert {row["mirrored"] for row in rows} == {"true", "false"}
    for row, same, pose in zip(rows, exact, found.poses, strict=True):
        assert float(row["angle"]) == same["angle"]
        angle, scale = np.radians(float(row["angle"])), float(row["scale"])
        turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        mirror = np.diag([-1.0 if row["mirrored"] == "true" else 1.0, 1.0])
        np.testing.assert_allclose(turn @ mirror, pose[:2, :2], atol=1e-3)
        np.testing.assert_allclose([float(row["shift_x"]), float(row["shift_y"])], pose[:2, 2], atol=1e-3)


HOSTILE = [
    *HOSTILE_TEXTS, "line\nbreak\r\n.png", "bytes-\udcff.png", "=1+1|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1",
    "quote\"comma,apostrophe'.png", "'already",
]  # fmt: skip


def test_hostile_names_do_nothing(browser, page_of, found):
    names = [HOSTILE[i % len(HOSTILE)] for i in range(len(found.names))]
    path = page_of(
        names=names,
        question=HOSTILE[0],
        rejected=[Rejected(name, name) for name in HOSTILE],
        reproduction=Reproduction(HOSTILE[1], 0, HOSTILE[2], {HOSTILE[0]: HOSTILE[4]}),
        rounds=[
            of_cluster.Round(found.rounds[0].images, HOSTILE[0]),
            of_cluster.Round(found.rounds[1].images, HOSTILE[2]),
        ],
    )
    browser.open(path)
    title = browser.driver.title
    scripts = len(browser.all("script"))
    canvas = browser.one("#map-canvas")
    browser.js("arguments[0].focus()", canvas)
    for key in (RIGHT, DOWN, LEFT):
        browser.press(key)
        assert browser.one("#hover .file").text
    name = browser.within(0, ".name")
    name.clear()
    name.send_keys(HOSTILE[0], ENTER)
    browser.click(browser.within(0, ".open"))
    for member in browser.all(".member")[:6]:
        browser.js("arguments[0].focus()", member)
    assert browser.one("#members-title").text == HOSTILE[0]
    assert browser.driver.title == title
    assert len(browser.all("script")) == scripts
    assert not browser.all("main img, main iframe, dialog img, svg[onload], [onerror], [onfocus]")
    cells = [row.text for row in browser.all("#rejected tr td:first-child")]
    assert cells[0] == HOSTILE[0]
    assert {"line\\nbreak\\u000d\\n.png", "\\u202egnp.exe"} <= set(cells)
    browser.press(ESCAPE)

    rows = table(browser.download("#csv"))
    for row, given in zip(rows, names, strict=True):
        expected = re.sub("[\udc80-\udcff]", "\ufffd", given)
        assert row["path"] == ("'" + expected if expected[0] in "=+-@\t" else expected)
        assert row["path"][0] not in "=+-@\t\r\n"
    assert [row["path"] for row in json.loads(browser.download("#json"))["images"]] == names
    assert not [entry for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"]


def test_everything_works_from_the_keyboard(browser, page):
    browser.open(page)
    focused = "return document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    seen = []
    for _ in range(12):
        browser.press(TAB)
        seen.append(browser.js(focused))
        outline = browser.js("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen[-1]
    assert seen[0] == "Skip to the groups"
    assert "Align the images" in seen

    first = browser.within(0, ".open")
    browser.js("arguments[0].focus()", first)
    browser.press(RIGHT)
    assert browser.js(focused).startswith("Open Group 1")
    browser.press(LEFT)
    assert browser.js(focused).startswith("Open Group 0")
    browser.press(ENTER)
    assert browser.js("return document.querySelector('#members').open")
    assert browser.js(focused) == "Align the images"
    browser.press(SPACE)
    assert browser.js("return document.documentElement.hasAttribute('data-aligned')")
    browser.js("document.querySelector('.member').focus()")
    before = browser.one(".reading").text
    browser.press(RIGHT)
    assert browser.one(".reading").text != before
    assert len(browser.all('.member[tabindex="0"]')) == 1
    browser.press(ESCAPE)
    assert not browser.js("return document.querySelector('#members').open")
    assert browser.js("return document.activeElement === arguments[0]", first)

    browser.js("document.querySelector('#map-canvas').focus()")
    browser.press(RIGHT)
    assert browser.one("#map-status").get_attribute("textContent").startswith("shapes/no ")
    browser.press(ENTER)
    assert browser.js("return document.querySelector('#members').open")


def test_the_next_group_is_one_press_away(browser, page):
    browser.open(page)
    browser.click(browser.within(0, ".open"))
    assert not browser.one('[aria-label="Previous group"]').is_enabled()
    titles = []
    for _ in range(3):
        browser.click('[aria-label="Next group"]')
        titles.append(browser.one("#members-title").text)
    assert titles == ["Group 1", "Group 2", "No group"]
    assert not browser.all("#members .switch")


def test_the_map_shows_the_image_under_the_pointer(browser, page, found):
    from selenium.webdriver.common.action_chains import ActionChains

    browser.open(page)
    canvas = browser.one("#map-canvas")
    browser.js("arguments[0].scrollIntoView({ block: 'center' })", canvas)
    width, height = canvas.size["width"], canvas.size["height"]
    extent = min(width, height) - 48
    low, high = found.layout.min(0), found.layout.max(0)
    x, y = (found.layout[3] - (low + high) / 2) / (high - low).max()
    x, y = x * extent * min(1.7, (width - 48) / extent), -y * extent
    ActionChains(browser.driver, duration=0).move_to_element_with_offset(canvas, round(x), round(y)).perform()
    assert "shapes/no 3.png" in browser.one("#hover").text
    assert "Group 0" in browser.one("#hover").text
    assert likeness(shot(browser.one("#hover .tile")), found.images[3]) > 0.95
    ActionChains(browser.driver, duration=0).click().perform()
    assert browser.one("#members-title").text == "Group 0"


def test_the_map_zooms(browser, page):
    browser.open(page)
    picture = "return document.querySelector('#map-canvas').toDataURL()"
    whole = browser.js(picture)
    browser.click("#zoom-in")
    assert browser.js(picture) != whole
    browser.click("#zoom-out")
    assert browser.js(picture) == whole


def test_the_matrix_reads_out_what_one_group_gives_another(browser, page, found):
    browser.open(page)
    weights, labels = found.attention, found.labels
    share = weights[labels == 0][:, labels == 1].sum() / weights[labels == 0].sum()
    browser.js("document.querySelector('.field').focus()")
    browser.press(RIGHT)
    assert browser.one("#matrix-reading").text == f"Group 0 gives {share:.0%} of its attention to Group 1."
    shade = shot(browser.one(".field"))
    assert shade[:100, :100].mean() < shade[:100, -100:].mean()  # a group looks at itself


def test_the_film_plays_pauses_and_scrubs(browser, page):
    browser.open(page, motion="no-preference")
    bright = [shot(browser.one("#film")).mean()]
    for value in (1, 2):
        browser.js(
            "const s = document.querySelector('#scrub'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))",
            value,
        )
        bright.append(shot(browser.one("#film")).mean())
    assert bright[0] > bright[1] > bright[2]
    assert browser.one("#round-note").text == "round 2 of 2"
    # The test provides the clock, so that the result does not depend on the speed of the machine.
    browser.js(
        "window.clock = 0; window.frame = null; performance.now = () => window.clock;"
        "window.requestAnimationFrame = (frame) => { window.frame = frame; return 1 };"
        "window.cancelAnimationFrame = () => { window.frame = null };"
    )
    advance = "window.clock += arguments[0]; const frame = window.frame; window.frame = null; frame(window.clock)"

    def position():
        return float(browser.one("#scrub").get_attribute("value"))

    browser.click("#play")
    browser.js(advance, 700)
    assert position() == 0.5
    assert browser.one("#play").text == "Pause"
    browser.click("#play")
    assert browser.one("#play").text == "Play"
    assert browser.js("return window.frame") is None
    assert position() == 0.5
    browser.click("#play")
    browser.js(advance, 60000)
    assert position() == 2
    assert browser.one("#play").text == "Play"


def luminance(colour):
    parts = np.array([float(part) for part in re.findall(r"[\d.]+", colour)[:3]]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize(("width", "theme"), [(360, "light"), (1200, "dark")])
def test_text_has_contrast_and_nothing_is_cut_off(browser, page, theme, width):
    browser.open(page, theme=theme, width=width)
    assert browser.js("return document.documentElement.scrollWidth") == width
    paper = luminance(browser.js("return getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.1) == (theme == "dark")
    for selector in ("h1", ".note", ".question", ".bar nav a", ".facts .confidence", "a"):
        ink = luminance(browser.js("return getComputedStyle(document.querySelector(arguments[0])).color", selector))
        low, high = sorted((ink, paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, selector
    browser.click(browser.within(0, ".open"))
    assert browser.js("const d = document.querySelector('#members'); return d.scrollWidth <= d.clientWidth")


def test_the_theme_can_be_chosen(browser, page):
    browser.open(page, theme="light")
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = browser.js(paper)
    browser.click("#theme")
    assert luminance(browser.js(paper)) < 0.1 < luminance(light)
    browser.click("#theme")
    assert browser.js(paper) == light


def test_print_is_light_aligned_and_without_controls(browser, page):
    browser.open(page, theme="dark")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert luminance(browser.js("return getComputedStyle(document.body).backgroundColor")) > 0.9
    assert not [
        button for button in browser.all("button:not(.open, .legend button)") if button.is_displayed() and button.text
    ]
    assert (
        browser.js("return getComputedStyle(document.querySelector('.poseable')).transform")
        != "matrix(1, 0, 0, 1, 0, 0)"
    )


@pytest.mark.parametrize(("allowed", "said"), [(True, "Copied"), (False, "Press Ctrl+C")])
def test_copying_the_command(browser, page, allowed, said):
    browser.open(page)
    if not allowed:
        browser.js("Object.defineProperty(navigator, 'clipboard', {}); document.execCommand = () => false")
    browser.click("#copy")
    assert browser.until(lambda: {"Copy": None}.get(text := browser.one("#copy").text, text), "an answer") == said


def test_a_page_of_one_image_in_no_group_opens(browser, page_of, found):
    one = {name: getattr(found, name)[:1] for name in ("images", "names", "confidences", "poses", "layout")}
    browser.open(page_of(**one, labels=np.array([-1]), clusters=[], attention=None, rounds=[], rejected=[]))
    assert browser.one("h1").text == "1 image, 0 groups."
    browser.click(browser.within(-1, ".open"))
    assert "fits no group" in browser.one("#members").text


@pytest.mark.slow
def test_images_without_a_picture_are_counted_and_on_the_map(browser, page_of, found):
    browser.open(page_of(of_cluster.PageLimits(thumbnails=2000)))
    browser.click(browser.within(0, ".open"))
    shown = len(browser.all(".member"))
    assert shown < 17
    assert f"and {17 - shown} more without a picture on this page: unpose export" in browser.one("#members").text
    browser.press(ESCAPE)
    browser.js("document.querySelector('#map-canvas').focus()")
    read = set()
    for _ in range(len(found.names)):
        browser.press(LEFT)
        read.add(browser.one("#hover").text.split("\n")[-1])
    assert "shown: the mean of its group" in read


def test_a_page_without_a_run_folder_tells_of_none(browser, page_of):
    browser.open(page_of(of_cluster.PageLimits(thumbnails=2000), in_run=False))
    assert browser.one("#save").text == "Save labels.csv"
    browser.click(browser.within(0, ".open"))
    assert browser.one("#members .rest").text.endswith("more without a picture on this page")
    browser.press(ESCAPE)
    text = browser.one("body").text
    assert not [each for each in ("unpose apply", "unpose export", "run folder") if each in text]


@pytest.mark.slow
def test_five_thousand_images_open_and_scroll(browser, tmp_path):
    n, k, rng = 5000, 41, np.random.default_rng(0)
    labels = rng.integers(-1, k, n)
    images = rng.random((n, 7, 11), dtype=np.float32)
    made = of_cluster.Results(
        "?", images, [f"{i}.png" for i in range(n)], labels, rng.random(n), np.tile(np.eye(3), (n, 1, 1)),
        rng.normal(size=(n, 2)), [of_cluster.Cluster(images[c], 0.5, c, images[c]) for c in range(k)],
        Reproduction("unpose", 0, "0", {}),
    )  # fmt: skip
    path = write_text(tmp_path / "report.html", of_cluster.render(made))
    browser.open(path)
    # Down the whole page in forty steps, each waited for until it is drawn.
    browser.driver.execute_async_script(
        "const done = arguments[0], height = document.body.scrollHeight; let step = 0;"
        "const next = () => { scrollTo(0, step++ * height / 40); step > 40 ? done() : requestAnimationFrame(next) };"
        "next()"
    )
    browser.click(browser.within(3, ".open"))
    assert len(browser.all(".member")) == (labels == 3).sum()


def test_the_name_of_a_small_group_keeps_to_its_marks(browser, page_of, found):
    layout = np.array(found.layout)
    layout[found.labels == 2] = (2.0, 0.5)
    layout[np.flatnonzero(found.labels == 2)[0]] = (0.0, 1.2)  # one of five lies apart
    browser.open(page_of(layout=layout))
    browser.js(
        "window.said = {}; const write = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, x, y) "
        "{ window.said[text] = [x, y]; write.call(this, text, x, y); }"
    )
    browser.one("#map-canvas").send_keys("+", "-")  # drawn again, as it was
    said = browser.js("return window.said")
    assert set(said) == {"Group 0", "Group 1", "Group 2"}
    # Marks to the right of all others, half way up: the name is above or below them, and not by the one apart.
    assert said["Group 2"][0] > max(said["Group 0"][0], said["Group 1"][0])
    height = browser.js("return document.getElementById('map-canvas').clientHeight")
    assert abs(said["Group 2"][1] - height / 2) < 60


def test_corners_of_aligned_images_have_the_colour_of_their_border(browser, page_of, found):
    browser.open(page_of(images=1 - 0.9 * np.asarray(found.images)))  # dark shapes on white
    browser.click(browser.within(0, ".open"))
    browser.click("#members .switch")
    tiles = browser.seen(".member .tile")
    assert min(tile[5:-5, 5:-5][[0, 0, -1, -1], [0, -1, 0, -1]].min() for tile in tiles) > 240


def test_a_click_enlarges_an_image_and_the_farthest_come_first_on_request(browser, page, found):
    browser.open(page)
    browser.click(browser.within(0, ".open"))
    browser.click("#members select option[value=far]")
    farthest = max(np.flatnonzero(found.labels == 0), key=lambda i: found.distances[i])
    first = browser.all(".member")[0]
    assert first.get_attribute("aria-label").startswith(found.names[farthest])
    width = "return document.querySelector('.member .tile').getBoundingClientRect().width"
    small = browser.js(width)
    browser.click(first)
    assert browser.js(width) > 3 * small
    browser.press(ENTER)
    browser.click(browser.all(".member")[0])
    assert browser.js("const d = document.querySelector('#members'); return d.scrollWidth <= d.clientWidth")


def test_copies_and_remarks_are_on_the_page(browser, page_of, found):
    copies = np.arange(len(found.labels))
    copies[5] = 2
    browser.open(page_of(copies=copies, remarks=["The groups are <not> stable."]))
    assert browser.one(".lead .warning").text == "The groups are <not> stable."
    assert [cell.text for cell in browser.all("#copies-list td")] == [found.names[5], found.names[2]]
    assert "two subsets agree by 0.91" in browser.one(".verdict").text
    browser.open(page_of(stability=None))
    assert "confidence unknown" in browser.group(0).text
    assert "confidence" not in browser.one(".verdict p").text


def test_a_search_finds_groups_by_their_name_and_by_the_names_of_their_files(browser, page, found):
    browser.open(page)
    image = int(np.flatnonzero(found.labels == 1)[-1])
    box = browser.one("#search")
    box.send_keys(found.names[image].upper())
    holding = {int(label) for name, label in zip(found.names, found.labels, strict=True) if found.names[image] in name}
    assert set(browser.order()) == holding
    assert "match" in browser.one("#status").text
    browser.click(browser.within(1, ".open"))
    assert browser.all(".member")[0].get_attribute("aria-label").startswith(found.names[image])
    assert "sought" in browser.all(".member")[0].get_attribute("class")
    browser.press(ESCAPE)
    box.clear()
    box.send_keys("group 2")
    assert 2 in browser.order()
    box.send_keys("no such name")
    assert browser.order() == []
    assert "0 file names and 0 groups" in browser.one("#status").text


def test_two_groups_are_compared_side_by_side(browser, page, found):
    browser.open(page)
    assert not browser.one("#compare").is_enabled()
    for group in (0, 2):
        browser.click(browser.within(group, ".select"))
    browser.click("#compare")
    sides = browser.all("#members .side")
    assert [side.find_element("css selector", "h3").text for side in sides] == ["Group 0", "Group 2"]
    assert sides[0].rect["x"] + sides[0].rect["width"] <= sides[1].rect["x"]
    counts = [len(side.find_elements("css selector", ".member")) for side in sides]
    assert counts == [(found.labels == 0).sum(), (found.labels == 2).sum()]
    mean = browser.one("#members .side .mean")
    assert likeness(shot(mean), found.clusters[0].mean) > 0.97
    assert browser.one("#members-title").text == "Group 0 and Group 2"
    browser.press(ESCAPE)
    browser.click(browser.within(1, ".select"))
    assert not browser.one("#compare").is_enabled()
