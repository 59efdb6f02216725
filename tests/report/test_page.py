"""The page as text: contents, size limits, and file names that are never interpreted as markup."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.sparse import csr_array

from kit.pages import Parsed, clustered
from unpose.report import Reproduction, display_range, evenly_spaced, thumbnail
from unpose.report import page as of_cluster
from unpose.report.attention import attention_picture
from unpose.report.thumbnails import MARGIN, share_equally, sheet


def picture_of(parsed, name):
    return Image.open(io.BytesIO(base64.b64decode(parsed.texts[f"sheet-{name}"])))


def test_question_answer_and_how_to_reproduce_stand_in_the_text():
    labels = np.array([0] * 20 + [-1] * 3)
    text = of_cluster.render(
        clustered(labels=labels, confidences=np.full(23, 0.75), agreement={"accuracy": 0.9}, stability=0.5)
    )
    for said in ("What is here?", "23 images, 3 groups.", "75%</strong>", "3 images belong to no group", "0.900",
                 "unpose cluster folder -o run", "unpose 1.2.3"):  # fmt: skip
        assert said in text


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
    text = of_cluster.render(
        of_cluster.Results(
            "?", Repeated(), [f"a folder of some length/another one/image number {i:06}.tiff" for i in range(n)],
            labels, rng.random(n), rng.normal(size=(n, 3, 3)) + 3 * np.eye(3), rng.normal(size=(n, 2)),
            [of_cluster.Cluster(noise[c], 0.5, c, noise[c, ..., 0]) for c in range(k)],
            Reproduction("unpose", 0, "0", {}),
            attention=ring, rounds=[of_cluster.Round(noise[:30])] * 5,
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


@pytest.mark.parametrize(
    ("limits", "size"), [(of_cluster.PageLimits(thumbnails=5000), 5000), (of_cluster.PageLimits(page=0), 0)]
)
def test_thumbnails_keep_to_their_room_and_the_page_says_so(limits, size):
    text = of_cluster.render(clustered(n=211), limits=limits)
    parsed = Parsed(text)
    shown = parsed.data["shown"]
    assert sum(len(sheet) for name, sheet in parsed.texts.items() if "thumbnails" in str(name)) <= size
    assert (len(shown) > 0) == (size > 0)
    assert f"{len(shown)} of 211 images have a picture here" in text


def test_small_sets_have_a_picture_of_every_image():
    made = clustered(n=41)
    data = Parsed(of_cluster.render(made)).data
    assert sorted(data["shown"]) == list(range(41))
    labels = made.labels[data["shown"]]
    assert (np.diff(labels) >= 0).all()  # cluster by cluster


@pytest.mark.parametrize("given_shape", [(11, 17), (17, 11, 3), (97, 71), (5, 7, 2)])
def test_thumbnails_are_the_images(given_shape):
    made = clustered(n=7, shape=given_shape)
    smooth = np.cumsum(np.cumsum(np.asarray(made.images), 1), 2)
    smooth /= smooth.max()
    made = replace(made, images=smooth)
    parsed = Parsed(of_cluster.render(made))
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
    assert Parsed(of_cluster.render(clustered(poses=flat))).data["tilts"] is None
    tilted = flat.copy()
    tilted[:, 2, :2] = 0.002 * rng.normal(size=(23, 2))
    one, two = (Parsed(of_cluster.render(clustered(poses=poses))).data for poses in (tilted, 1.7 * tilted))
    assert one == two
    np.testing.assert_allclose(one["tilts"], tilted[:, 2, :2], atol=1e-7)
    np.testing.assert_allclose(one["poses"], tilted[:, :2].reshape(23, 6), atol=1e-4)


def test_a_page_of_one_image_in_no_cluster():
    made = clustered(n=1, k=0)
    text = of_cluster.render(made)
    assert "1 image, 0 groups." in text
    assert 'id="attention"' not in text
    assert 'id="skipped"' not in text
    assert Parsed(text).data["shown"] == [0]


def test_images_of_not_a_number_and_constant_images_are_shown():
    images = np.zeros((23, 5, 7))
    images[3] = np.nan
    images[5] = np.inf
    assert Parsed(of_cluster.render(clustered(images=images))).data["shown"]


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
        ({"clusters": [of_cluster.Cluster(np.zeros((5, 7)), 0.5, 23)] * 3}, "exemplars must be"),
    ],
)
def test_what_cannot_be_shown_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        clustered(**wrong)


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
