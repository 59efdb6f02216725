"""The page as text: contents, size limits, and file names that are never interpreted as markup."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.sparse import csr_array

from unpose.report import Rejected, Reproduction, display_range, evenly_spaced, thumbnail
from unpose.report.attention import attention_picture
from unpose.report.page import Cluster, Results, Round, render
from unpose.report.thumbnails import MARGIN, share_equally, sheet

HOSTILE = [
    "<img src=x onerror=alert(1)>.png", "</script><script>alert(1)</script>.png", "-->.png", "<!--<script>.png",
    "</script x.png", "<!--<script x",
    "\"'`.png", "a\nb\r\n.png", "\u202egnp.exe", "{{ 7 * 7 }}{% raw %}.png", "&lt;b&gt;&amp;.png", "\u2028\u2029.png",
    "caf\u00e9-\u732b-\U0001f600.png", "bytes-\udcff\udc80.png", "=HYPERLINK(1).png",
]  # fmt: skip


def results(n=23, k=3, shape=(11, 17), seed=0, **changes):
    rng = np.random.default_rng(seed)
    labels = np.append(np.arange(k), rng.integers(-1, k, n - k)) if k else np.full(n, -1)
    clusters = [
        Cluster(rng.random(shape), float(rng.random()), int(np.flatnonzero(labels == c)[0]), rng.random(shape[:2]))
        for c in range(k)
    ]
    made = Results(
        question="What is here?",
        images=rng.random((n, *shape)),
        names=[f"folder/image {i}.png" for i in range(n)],
        labels=labels,
        confidences=rng.random(n),
        poses=np.eye(3) + 0.1 * rng.normal(size=(n, 3, 3)) * [[1], [1], [0]],
        layout=rng.normal(size=(n, 2)),
        clusters=clusters,
        reproduction=Reproduction("unpose cluster folder -o run", 5, "1.2.3", {"group": "se2"}),
    )
    return replace(made, **changes)


class Parsed(HTMLParser):
    """Every element with its attributes, and the text of scripts, styles and others by id or tag."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self._open = [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open = dict(attributes).get("id") or tag

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, text):
        self.texts[self._open] = self.texts.get(self._open, "") + text

    @property
    def data(self):
        return json.loads(self.texts["data"])


def picture_of(parsed, name):
    return Image.open(io.BytesIO(base64.b64decode(parsed.texts[f"sheet-{name}"])))


def test_the_same_results_give_the_same_page():
    assert render(results()) == render(results())
    assert render(results()) != render(results(seed=1))


def test_question_answer_and_how_to_reproduce_stand_in_the_text():
    labels = np.array([0] * 20 + [-1] * 3)
    text = render(results(labels=labels, confidences=np.full(23, 0.75), agreement={"accuracy": 0.9}, stability=0.5))
    for said in ("What is here?", "23 images, 3 groups.", "75%</strong>", "3 images belong to no group", "0.900",
                 "unpose cluster folder -o run", "unpose 1.2.3"):  # fmt: skip
        assert said in text


@pytest.mark.parametrize("everywhere", HOSTILE)
def test_hostile_text_is_data_and_never_markup(everywhere):
    def page_saying(text):
        return render(
            results(
                n=17,
                question=text,
                names=[text] * 17,
                rejected=[Rejected(text, text)],
                reproduction=Reproduction(text, 5, text, {text: text}),
                agreement={text: 0.5},
                rounds=[Round(np.zeros((2, 5, 7)), text)],
            )
        )

    text = page_saying(everywhere)
    text.encode("utf-8")
    parsed, plain = Parsed(text), Parsed(page_saying("plain"))
    assert parsed.data["names"] == [everywhere] * 17
    assert parsed.data["rejected"] == [[everywhere, everywhere]]
    shape = [[(tag, sorted(attributes)) for tag, attributes in each.elements] for each in (parsed, plain)]
    assert shape[0] == shape[1]  # not one element, not one attribute more
    if "<" in everywhere:
        assert everywhere not in text


def test_the_policy_lets_in_this_script_and_this_style_and_nothing_else():
    parsed = Parsed(render(results(rounds=[Round(np.zeros((2, 5, 7)))], attention=np.eye(23))))
    policy = next(a["content"] for tag, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(parsed.texts[tag].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    for tag, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    script = parsed.texts["script"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
    assert set(re.findall(r"https?://[\w./]+", script + parsed.texts["style"])) == {"http://www.w3.org/2000/svg"}


@pytest.mark.slow
def test_twenty_thousand_images_of_pure_noise_stay_under_15_megabytes():
    n, k, rng = 20_000, 31, np.random.default_rng(0)
    noise = rng.random((127, 64, 64, 3), dtype=np.float32)

    class Repeated:
        """Stands for a stack that is too large to hold: the page reads one image at a time."""

        def __len__(self):
            return n

        def __getitem__(self, i):
            return noise[i % len(noise)]

    labels = np.minimum(rng.geometric(0.1, n) - 1, k - 1)
    ring = csr_array((np.full(n, 0.5), (np.arange(n), np.roll(np.arange(n), 1))), shape=(n, n))
    text = render(
        Results(
            "?", Repeated(), [f"a folder of some length/another one/image number {i:06}.tiff" for i in range(n)],
            labels, rng.random(n), rng.normal(size=(n, 3, 3)) + 3 * np.eye(3), rng.normal(size=(n, 2)),
            [Cluster(noise[c], 0.5, c, noise[c, ..., 0]) for c in range(k)], Reproduction("unpose", 0, "0", {}),
            attention=ring, rounds=[Round(noise[:30])] * 5,
        )
    )  # fmt: skip
    assert len(text.encode()) < 15_000_000
    data = Parsed(text).data
    assert len(data["names"]) == len(data["poses"]) == n
    pictured = np.bincount(labels[data["shown"]], minlength=k)
    sizes = np.bincount(labels, minlength=k)
    full = pictured == sizes
    assert pictured.sum() > 1000
    assert np.ptp(pictured[~full]) <= 1  # clusters that do not fit share what there is
    assert pictured[full].max(initial=0) <= pictured[~full].min()


@pytest.mark.parametrize(("limit", "size"), [("THUMBNAIL_BYTES", 5000), ("PAGE_BYTES", 0)])
def test_thumbnails_keep_to_their_room_and_the_page_says_so(monkeypatch, limit, size):
    monkeypatch.setattr(f"unpose.report.page.{limit}", size)
    text = render(results(n=211))
    parsed = Parsed(text)
    shown = parsed.data["shown"]
    assert sum(len(sheet) for name, sheet in parsed.texts.items() if "thumbnails" in str(name)) <= size
    assert (len(shown) > 0) == (size > 0)
    assert f"{len(shown)} of 211 images have a picture here" in text


def test_small_sets_have_a_picture_of_every_image():
    made = results(n=41)
    data = Parsed(render(made)).data
    assert sorted(data["shown"]) == list(range(41))
    labels = made.labels[data["shown"]]
    assert (np.diff(labels) >= 0).all()  # cluster by cluster


@pytest.mark.parametrize("given_shape", [(11, 17), (17, 11, 3), (97, 71), (5, 7, 2)])
def test_thumbnails_are_the_images(given_shape):
    made = results(n=7, shape=given_shape)
    smooth = np.cumsum(np.cumsum(np.asarray(made.images), 1), 2)
    smooth /= smooth.max()
    made = replace(made, images=smooth)
    parsed = Parsed(render(made))
    data, sprites = parsed.data, picture_of(parsed, "thumbnails-0").convert("RGB")
    columns, (width, height) = (data["sheets"]["thumbnails-0"][key] for key in ("columns", "size"))
    assert max(width, height) == min(64, max(given_shape[:2]))
    assert data["image"] == [given_shape[1], given_shape[0]]
    for position, image in enumerate(data["shown"]):
        left = (position % columns) * (width + 2 * MARGIN) + MARGIN
        top = (position // columns) * (height + 2 * MARGIN) + MARGIN
        tile = np.asarray(sprites.crop((left, top, left + width, top + height)), dtype=float)
        expected = np.asarray(thumbnail(smooth[image], (0.0, 1.0), 64), dtype=float)
        assert np.abs(tile - expected).mean() < 12


def test_poses_are_normalised_and_tilts_kept():
    rng = np.random.default_rng(1)
    flat = np.eye(3) + 0.1 * rng.normal(size=(23, 3, 3)) * [[1], [1], [0]]
    assert Parsed(render(results(poses=flat))).data["tilts"] is None
    tilted = flat.copy()
    tilted[:, 2, :2] = 0.002 * rng.normal(size=(23, 2))
    one, two = (Parsed(render(results(poses=poses))).data for poses in (tilted, 1.7 * tilted))
    assert one == two
    np.testing.assert_allclose(one["tilts"], tilted[:, 2, :2], atol=1e-7)
    np.testing.assert_allclose(one["poses"], tilted[:, :2].reshape(23, 6), atol=1e-4)


def test_a_page_of_one_image_in_no_cluster():
    made = results(n=1, k=0)
    text = render(made)
    assert "1 image, 0 groups." in text
    assert 'id="attention"' not in text
    assert 'id="skipped"' not in text
    assert Parsed(text).data["shown"] == [0]


def test_images_of_not_a_number_and_constant_images_are_shown():
    images = np.zeros((23, 5, 7))
    images[3] = np.nan
    images[5] = np.inf
    assert Parsed(render(results(images=images))).data["shown"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": np.zeros((0, 5, 7))}, "at least one image"),
        ({"names": ["a"]}, "names must be as many"),
        ({"labels": np.zeros(22, int)}, r"labels must have shape \(23,\)"),
        ({"labels": np.full(23, 3)}, "from -1 to 2"),
        ({"labels": np.zeros(23)}, "must be integers"),
        ({"confidences": np.full(23, 1.5)}, "between 0 and 1"),
        ({"confidences": np.full(23, np.nan)}, "must be finite"),
        ({"poses": np.zeros((23, 3, 3))}, "nonzero last entry"),
        ({"layout": np.zeros((23, 3))}, r"layout must have shape \(23, 2\)"),
        ({"attention": np.zeros((23, 22))}, "attention must have shape"),
        ({"clusters": [Cluster(np.zeros((5, 7)), 0.5, 23)] * 3}, "exemplars must be"),
    ],
)
def test_what_cannot_be_shown_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        results(**wrong)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 300))
def test_places_are_shared_fairly(sizes, total):
    places = share_equally(sizes, total)
    assert sum(places) == min(total, sum(sizes))
    short = [got for got, size in zip(places, sizes, strict=True) if got < size]
    assert all(got <= size for got, size in zip(places, sizes, strict=True))
    if short:
        assert max(short) - min(short) <= 1
        assert max(places) <= max(short) + 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_spread_takes_both_ends_and_no_place_twice(count, places):
    taken = evenly_spaced(count, places)
    assert len(taken) == min(count, places)
    if places > 1 and count > 1:
        assert taken[0] == 0
        assert taken[-1] == count - 1


def test_black_and_white():
    rng = np.random.default_rng(0)
    screen = rng.random((4, 23, 29))
    assert display_range(screen) == (0.0, 1.0)
    assert display_range(screen * 1.1 - 0.05) == (0.0, 1.0)  # resampling overshoots
    assert display_range((screen * 255).astype(np.uint8)) == (0.0, 1.0)
    low, high = display_range(screen * 4095)  # twelve bits as they come
    assert low == 0
    assert 4000 < high <= 4095
    low, high = display_range(5 + screen)
    assert 5 <= low < 5.1
    assert 5.9 < high <= 6
    assert display_range(np.full((2, 3, 5), 7.0)) == (7.0, 8.0)


def test_a_sheet_of_many_pictures_stays_within_what_webp_can_hold():
    made = sheet([Image.new("RGB", (23, 61))] * 4001)
    assert max(Image.open(io.BytesIO(base64.b64decode(made.data))).size) < 16383


def test_the_attention_picture_does_not_depend_on_the_order_of_images(rng):
    n = 53
    labels, confidences = rng.integers(-1, 4, n), rng.permutation(n) / n
    weights = rng.random((n, n)) * (rng.random((n, n)) < 0.2)
    shuffled = rng.permutation(n)
    one = attention_picture(weights, labels, confidences)
    two = attention_picture(csr_array(weights[np.ix_(shuffled, shuffled)]), labels[shuffled], confidences[shuffled])
    np.testing.assert_array_equal(one.density, two.density)
    np.testing.assert_allclose(one.shares, two.shares)
    np.testing.assert_allclose(one.shares.sum(1), 1)
    assert one.order.tolist() == [0, 1, 2, 3, -1]
    inside = weights[labels[:, None] == labels[None]].sum() / weights.sum()
    assert one.inside == pytest.approx(inside)


def test_attention_that_stays_inside_is_a_block_diagonal_picture():
    labels = np.repeat([0, 1, 2], [700, 300, 37])
    weights = csr_array((labels[:, None] == labels[None]).astype(float))
    made = attention_picture(weights, labels, np.zeros(1037))
    assert made.inside == 1
    assert made.density[0, 0] == 255
    assert made.density[0, -1] == made.density[-1, 0] == 0
    assert attention_picture(np.zeros((1037, 1037)), labels, np.zeros(1037)).inside == 0
