"""The workbench in a real browser: the numbers of Python, and work by keys, presses and files that is not lost."""

import base64
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from scipy.sparse import csr_array

from kit.commands import table
from kit.pages import Parsed, clustered
from unpose.cluster.graph import attention_matrix
from unpose.cluster.labels import most_instructive, spread_labels
from unpose.files import write_text
from unpose.report import page as of_cluster

pytestmark = pytest.mark.browser

ENTER, ESCAPE, TAB, RIGHT = "\ue007", "\ue00c", "\ue004", "\ue014"
GRAPH = files("unpose.report").joinpath("assets/graph.js").read_text()


def neighbour_graph(n, seed, k=11):
    """The attention matrix of random points in three clouds, as the page stores it, and two images that see nothing."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 3)) + 3 * rng.integers(0, 3, n)[:, None]
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    indices = np.argsort(apart, axis=1)[:, 1 : k + 1]
    weights = attention_matrix(indices, np.take_along_axis(apart, indices, 1)).tolil()
    weights[[5, 17]] = 0
    weights[:, [5, 17]] = 0
    return csr_array(csr_array(weights).astype(np.float32).astype(float))


def in_page(browser, weights, script, *arguments):
    """Run a script with the functions of graph.js and the graph as the page reads it."""
    kinds = {"counts": "<u2", "columns": "<u2", "weights": "<f4"}
    graph = Parsed(of_cluster.render(clustered(n=weights.shape[0], attention=weights))).data["graph"]
    stored = {name: np.frombuffer(base64.b64decode(text), kinds[name]) for name, text in graph.items()}
    head = (
        "const [counts, columns, weights, ...given] = arguments; const graph = symmetricWalk(counts, columns, weights);"
    )
    return browser.js(GRAPH + head + script, *(stored[name].tolist() for name in kinds), *arguments)


def test_labels_spread_in_the_page_as_in_python(browser, page):
    weights, n = neighbour_graph(211, 0), 211
    browser.open(page)
    classes = np.full(n, -1)
    classes[np.random.default_rng(1).choice(n, 23, replace=False)] = np.arange(23) % 5
    members = [np.flatnonzero(classes == c).tolist() for c in range(5)]
    script = "return given[0].map((images) => [...spreadScores(graph, startOf(graph.n, images))])"
    scores = np.array(in_page(browser, weights, script, members)).T
    found, unknown = scores / scores.sum(1, keepdims=True), classes < 0
    # Of the probabilities, Python gives equal parts of a thousandth to all classes.
    expected = spread_labels(weights, classes, 5)[unknown]
    np.testing.assert_allclose(0.999 * found[unknown] + 0.001 / 5, expected, atol=2e-6)
    assert np.ptp(found[unknown], axis=1).max() > 0.5  # the labels do say something


def test_the_page_asks_for_the_images_that_python_would_ask_for(browser, page):
    weights = neighbour_graph(307, 2)
    browser.open(page)
    rng = np.random.default_rng(3)
    known, uncertainty = rng.choice(307, 13, replace=False), rng.random(307)
    flags = np.isin(np.arange(307), known).astype(int)
    asked = in_page(
        browser, weights,
        "const steps = reachOf(graph); let result; do { result = steps.next() } while (!result.done);"
        "return mostInstructive(result.value, given[0], given[1], 9).map(([image]) => image)",
        flags.tolist(), uncertainty.tolist(),
    )  # fmt: skip
    assert asked == most_instructive(weights, known, uncertainty, 9).tolist()


def test_a_split_finds_two_parts_that_hardly_touch(browser, page):
    rng = np.random.default_rng(4)
    side = rng.permutation(np.repeat([0, 1], [37, 24]))
    weights = (side[:, None] == side[None]) * rng.random((61, 61)) + 0.02 * rng.random((61, 61))
    browser.open(page)
    parts = in_page(browser, np.maximum(weights, weights.T), "return splitInTwo(graph, given[0])", list(range(61)))
    assert {frozenset(part) for part in parts} == {frozenset(np.flatnonzero(side == s).tolist()) for s in (0, 1)}


@pytest.fixture(scope="module")
def page(found, tmp_path_factory):
    """The page of the three shapes with a graph in which hardly any weight leads from one group to another."""
    rng = np.random.default_rng(5)
    labels, n = found.labels, len(found.labels)
    weights = (labels[:, None] == labels[None]) * (0.5 + rng.random((n, n))) + 0.003 * rng.random((n, n))
    return write_text(
        tmp_path_factory.mktemp("bench") / "report.html", of_cluster.render(replace(found, attention=weights))
    )


def start(browser, page, **options):
    browser.open(page, **options)
    browser.js("document.getElementById('question').focus()")
    return browser


def title(browser):
    return browser.one("#question-title").text


def settled(browser):
    return int(browser.js("return document.getElementById('bench-progress').value"))


def test_a_collection_is_named_from_the_keyboard(browser, page, found):
    start(browser, page)
    assert title(browser) == "Group 0: 17 images. What are they?"
    assert settled(browser) == 0
    browser.press("nletter F", ENTER)
    assert settled(browser) == 17
    assert title(browser) == "Group 1: 11 images. What are they?"
    assert browser.js("return document.activeElement.id") == "question"
    assert "letter F" in browser.one("#choices").text
    browser.press("nletter L", ENTER)
    browser.press("nflag", ENTER)
    assert settled(browser) == 33
    assert "33 of 35 images settled (94%), precision not checked yet" in browser.one("#progress-line").text
    # The two that are in no group are neighbours of the others; what is proposed is one press away.
    browser.press(" ")
    assert settled(browser) > 33
    browser.press("z")
    assert settled(browser) == 33
    browser.press("zzz")
    assert settled(browser) == 0
    browser.press("yyy")
    assert settled(browser) == 33
    rows = table(browser.download("#save"))
    assert [row["path"] for row in rows] == list(found.names)
    names = {0: "letter F", 1: "letter L", 2: "flag", -1: ""}
    assert [row["name"] for row in rows] == [names[label] for label in found.labels]
    assert [row["settled"] for row in rows] == ["false" if label < 0 else "true" for label in found.labels]
    assert all(row["proposed"] in names.values() and row["proposed"] for row in rows if row["settled"] == "false")


def test_skip_goes_on_and_back_returns(browser, page):
    start(browser, page)
    asked = [title(browser)]
    for key in ("j", "j", "k", "k"):
        browser.press(key)
        asked.append(title(browser))
    assert [text[:7] for text in asked] == ["Group 0", "Group 1", "Group 2", "Group 1", "Group 0"]


def test_a_name_that_was_given_on_a_card_is_proposed(browser, page):
    start(browser, page)
    name = browser.within(0, ".name")
    name.clear()
    name.send_keys("letter F", ENTER)
    assert title(browser) == "letter F: 17 images. What are they?"
    assert settled(browser) == 0
    browser.js("document.getElementById('question').focus()")
    browser.press(" ")
    assert settled(browser) == 17


def test_keys_mean_nothing_outside_the_workbench(browser, page):
    start(browser, page)
    browser.js("document.activeElement.blur()")
    browser.press("x")
    browser.js("document.querySelector('#search').focus()")
    browser.press("x ")
    assert title(browser).startswith("Group 0: 17")
    assert not browser.one("#bench-undo").is_enabled()


def test_the_slider_and_single_tiles_choose_what_is_named(browser, page):
    start(browser, page)
    browser.js("const s = document.getElementById('cut'); s.value = 9; s.dispatchEvent(new Event('input'))")
    pressed = [tile.get_attribute("aria-pressed") for tile in browser.all(".choose")]
    assert pressed == ["true"] * 9 + ["false"] * 8
    tiles = browser.all(".choose")
    refused, added = (int(tiles[k].get_attribute("data-image")) for k in (2, 12))
    browser.click(tiles[2])
    browser.click(tiles[12])
    assert browser.one("#cut-count").text == "9 of 17"
    browser.press("nmine", ENTER)
    rows = table(browser.download("#save"))
    mine = [i for i, row in enumerate(rows) if row["name"] == "mine"]
    assert len(mine) == 9
    assert added in mine
    assert refused not in mine
    assert rows[refused]["proposed"] != "mine"  # it was pressed out, so the page does not ask again
    assert {row["name"] for row in rows if row["cluster_found"] == "0"} == {"mine", "Rest of Group 0"}


def test_reject_split_merge_grow_and_check(browser, page, found):
    start(browser, page)
    browser.press("s")
    parts = [int(row["cluster"]) for row in table(browser.download("#save")) if row["cluster_found"] == "0"]
    assert len(set(parts)) == 2
    browser.press("z")
    browser.press("x")  # the whole group is none
    rows = table(browser.download("#save"))
    assert {row["cluster"] for row in rows if row["cluster_found"] == "0"} == {"-1"}
    browser.press("z")
    browser.press("nsame", ENTER)
    browser.press("nsame", ENTER)  # the same name twice merges
    rows = table(browser.download("#save"))
    assert sum(row["name"] == "same" for row in rows) == 28
    assert len({row["cluster"] for row in rows if row["name"] == "same"}) == 1
    browser.click("#check")
    assert title(browser) == "Are these 24 called rightly? Press those that are not."
    assert {name.text for name in browser.all(".called")} == {"same"}
    wrong = int(browser.all(".choose")[0].get_attribute("data-image"))
    browser.click(browser.all(".choose")[0])
    browser.click("#accept")
    assert table(browser.download("#save"))[wrong]["settled"] == "false"
    assert settled(browser) == 27
    assert "(24 checked)" in browser.one("#progress-line").text
    assert "precision 96% ±" in browser.one("#progress-line").text
    while not title(browser).startswith("Group 2"):
        browser.press("j")
    browser.click("#grow")
    assert title(browser) == "What else belongs to Group 2? Nearest first."
    browser.js("const s = document.getElementById('cut'); s.value = 1; s.dispatchEvent(new Event('input'))")
    browser.press(" ")
    assert title(browser).startswith("What else belongs to")  # until one says stop
    assert sum(row["name"] == "Group 2" for row in table(browser.download("#save"))) == 6
    browser.click("#grow")
    assert not title(browser).startswith("What else belongs to")


def test_work_survives_a_reload_and_goes_on_from_a_file(browser, page, found, tmp_path):
    start(browser, page)
    browser.press('nfirst, "quoted"', ENTER)
    browser.press("n=sum", ENTER)
    saved = browser.download("#save")
    assert {row["name"] for row in table(saved)} >= {'first, "quoted"', "'=sum"}
    start(browser, page, keep=True)
    assert settled(browser) == 28
    browser.press("z")
    assert settled(browser) == 17  # steps before the reload can be undone
    start(browser, page)
    assert settled(browser) == 0
    path = tmp_path / "labels.csv"
    path.write_bytes(saved.encode())
    browser.one("#open-labels").send_keys(str(path))
    browser.until(lambda: settled(browser) == 28, "28 settled images")
    assert table(browser.download("#save")) == table(saved)
    path.write_text("a,b\n1,2\n")
    browser.one("#open-labels").send_keys(str(path))
    browser.until(lambda: "no columns path and name" in browser.one("#status").text, "the status")
    assert settled(browser) == 28


def test_what_was_rejected_is_in_the_file_and_is_not_asked_again(browser, page, found, tmp_path):
    start(browser, page)
    for name in ("first", "second", "third"):
        browser.press(f"n{name}", ENTER)
    while " also " not in title(browser):
        browser.press("j")
    asked = title(browser)
    name = asked.rpartition("also ")[2].rstrip("?")
    shown = [int(tile.get_attribute("data-image")) for tile in browser.all(".choose")]
    browser.click("#all")
    browser.press("x")
    saved = browser.download("#save")
    rows = table(saved)
    assert [i for i, row in enumerate(rows) if row["rejected_names"]] == sorted(shown)
    assert {row["rejected_names"] for row in rows} == {"", f'["{name}"]'}
    assert all(rows[i]["proposed"] != name for i in shown)
    start(browser, page)  # nothing is kept in the browser
    path = tmp_path / "labels.csv"
    path.write_bytes(saved.encode())
    browser.one("#open-labels").send_keys(str(path))
    browser.until(lambda: settled(browser) == 33, "33 settled images")
    again = table(browser.download("#save"))
    assert again == rows
    assert f"more {name}" not in browser.one("#next").text
    old = "\r\n".join(line.rpartition(",")[0] for line in saved.replace(f'"[""{name}""]"', "").splitlines())
    path.write_text(old)  # a file of an earlier version says nothing about rejections, which stay as they are
    browser.one("#open-labels").send_keys(str(path))
    browser.until(lambda: "35 images read" in browser.one("#status").text, "the status")
    assert table(browser.download("#save")) == rows
    browser.press("zz")
    assert not any(row["rejected_names"] for row in table(browser.download("#save")))


def test_a_page_knows_what_was_rejected_before(browser, found, tmp_path):
    names = ["first", "second", "third"]
    settled_images = found.labels >= 0
    given = replace(
        found, group_names=names, settled=settled_images, rejected_names={33: [*names, "a name of no group"], 34: [1]},
        attention=np.ones((35, 35)),
    )  # fmt: skip
    start(browser, write_text(tmp_path / "report.html", of_cluster.render(given)))
    rows = table(browser.download("#save"))
    assert rows[33]["rejected_names"] == '["first","second","third","a name of no group"]'
    assert rows[33]["proposed"] == ""
    assert rows[34]["rejected_names"] == '["second"]'
    assert rows[34]["proposed"] in ("first", "third")


def test_names_by_number_and_by_touch_on_a_phone(browser, page):
    start(browser, page, width=360, height=740)
    assert browser.js("return document.documentElement.scrollWidth") == 360
    browser.press("nfirst", ENTER)
    browser.press("1")
    assert settled(browser) == 28
    browser.click(browser.all(".choose")[0])
    assert browser.all(".choose")[0].get_attribute("aria-pressed") == "false"
    browser.click("#choices button")
    assert settled(browser) == 32
    assert browser.js("return document.documentElement.scrollWidth") == 360


def test_what_a_screen_reader_is_told(browser, page):
    start(browser, page)
    assert browser.one("#question").get_attribute("role") == "group"
    assert browser.one("#question-title").get_attribute("aria-live") == "polite"
    first = browser.all(".choose")[0]
    assert first.get_attribute("aria-label").endswith(", in")
    assert len(browser.all('.choose[tabindex="0"]')) == 1
    browser.js("document.querySelector('.choose').focus()")
    browser.press(RIGHT)
    assert browser.js("return document.activeElement.dataset.rank") == "1"
    browser.press(ENTER)
    assert browser.js("return document.activeElement.getAttribute('aria-label')").endswith(", out")
    unlabelled = browser.js(
        "return [...document.querySelectorAll('#bench button, #bench input')].filter(e => "
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert unlabelled == 0


def test_a_page_without_weights_has_no_workbench(found):
    for attention in (None, np.zeros((35, 35))):
        assert 'id="bench"' not in of_cluster.render(replace(found, attention=attention))
    assert 'id="bench"' in of_cluster.render(found)
