"""Images of one group are never in two parts."""

import numpy as np
import pytest
from PIL import Image

from unpose.data import InputError, load


def divided(folder, labels, groups):
    """The indices of the images in each part, where the file says to which group an image belongs."""
    images = np.zeros((len(labels), 5, 7), np.float32)
    images[:, 2, 3], images[:, 4, 1] = np.arange(len(labels)) + 1, 0.5
    np.savez(folder / "made.npz", x=images, y=labels, slide=groups)
    found = load(folder / "made.npz", split_by="slide")
    return [np.rint(part.images[:, 2, 3]).astype(int) - 1 for part in (found.train, found.validation, found.test)]


@pytest.mark.laws
@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_divided_and_the_shares_are_about_right(tmp_path, seed):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 40, 700)
    labels = rng.integers(0, 3, 700)
    parts = divided(tmp_path, labels, groups)
    assert sorted(np.concatenate(parts)) == list(range(700))
    kinds = [set(groups[part]) for part in parts]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    for part, share in zip(parts, (0.7, 0.15, 0.15), strict=True):
        np.testing.assert_allclose(np.bincount(labels[part]) / np.bincount(labels), share, atol=0.08)


def test_three_groups_are_enough_and_two_are_not(tmp_path):
    labels = np.array([0, 1, 0, 1, 0, 1])
    assert [len(part) for part in divided(tmp_path, labels, list("aabbcc"))] == [2, 2, 2]
    for groups, message in ((["a"] * 6, r"1 group \(a\)"), (list("aaabbb"), r"2 groups \(a, b\)")):
        with pytest.raises(InputError, match=message):
            divided(tmp_path, labels, groups)


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """Twelve slides with four cells each, CLASS/SLIDE/slideNN_K.png, and a table."""
    folder = tmp_path_factory.mktemp("slides")
    rng, lines = np.random.default_rng(0), ["path,patient"]
    for slide in range(12):
        for number in range(4):
            name = f"{'round' if number % 2 else 'long'}/s{slide:02d}/slide{slide:02d}_{number}.png"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 9), 10 * slide + number, np.uint8) + rng.integers(0, 9, (9, 9), np.uint8)).save(
                folder / name
            )
            lines.append(f"{name},patient {slide // 3}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(("split_by", "size"), [("parent-folder", 10), (r"slide(\d+)_", 10), ("patient", 30)])
def test_columns_patterns_and_folders(slides, split_by, size):
    dataset = load(slides, split_by=split_by)
    assert f"divided by {split_by}" in dataset.source
    # The brightness tells the slide: one group has images of at most 10 (a slide) or 30 levels (a patient).
    levels = [{int(image.min() * 255) // size for image in part.images} for part in (dataset.train, dataset.test)]
    assert not levels[0] & levels[1]
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == 48


@pytest.mark.parametrize(
    ("split_by", "message"),
    [
        ("slice[0-9]+", "no name matches"),
        ("slide[0-9", "no regular expression"),
        ("slide00", "44 images do not match"),
        ("round|long", "2 groups"),
        (r"slide", "1 group"),
        ("paitent", "columns of labels.csv: path, patient"),
    ],
)
def test_wrong_groups_say_what_is_needed(slides, split_by, message):
    with pytest.raises(InputError, match=message):
        load(slides, split_by=split_by)


def test_arrays_and_data_that_are_divided_already(tmp_path):
    rng = np.random.default_rng(0)
    images, labels, slide = rng.random((30, 8, 8)), np.arange(30) % 2, np.arange(30) // 3
    np.savez(tmp_path / "x.npz", x=images, y=labels, slide=slide, few=slide[:3])
    dataset = load(tmp_path / "x.npz", split_by="slide")
    assert len(dataset.train) % 3 == len(dataset.test) % 3 == 0
    for wrong in ("few", "patient"):
        with pytest.raises(InputError, match="one entry for each of the 30 images"):
            load(tmp_path / "x.npz", split_by=wrong)
    np.savez(tmp_path / "d.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(InputError, match="divided into training and test already"):
        load(tmp_path / "d.npz", split_by="slide")
    with pytest.raises(InputError, match="as published"):
        load("digits", split_by="slide")


def test_tables_that_cannot_be_used(slides, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for label in "ab":
        for number in range(4):
            Image.fromarray(np.full((9, 9), number, np.uint8)).save(tmp_path / label / f"{number}.png")
    for text, message in (("who,x\n1,2", "must have a column"), ("path,x\na,1\na,2", "twice"), ("path\n\xff", "CSV")):
        (tmp_path / "labels.csv").write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=message):
            load(tmp_path, split_by="x")
    (tmp_path / "labels.csv").write_text("path,x\na/0.png,1\n")
    with pytest.raises(InputError, match="7 images have no entry in the column x"):
        load(tmp_path, split_by="x")
    # One row cannot stand for two images of the same name: their slides would become one group.
    (tmp_path / "labels.csv").write_text("path,x\n" + "".join(f"{number}.png,s{number}\n" for number in range(4)))
    with pytest.raises(InputError, match=r"names '0.png', which a/0.png and b/0.png are; give their paths"):
        load(tmp_path, split_by="x")
