"""The contract of all image formats: exact values, upright, blended; damage and lies are refused within the memory."""

import re

import numpy as np
import pytest
from PIL import Image

from kit.formats import EVERY, SAMPLES, rejection, stored
from unpose.data import read_folder


def test_every_format_that_is_read_has_a_sample_and_one_that_lies(tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    named = re.search(r"\((.*)\)", rejection(tmp_path / "notes.png"))[1]
    assert set(named.split(", ")) == {sample.form for sample in SAMPLES} == {s.form for s in SAMPLES if s.lies}


def written(folder, sample, *orientation, pixels=None):
    """A file of this kind, whose name says nothing about the format."""
    path = folder / "sample.png"
    sample.write(path, sample.pixels if pixels is None else pixels, *orientation)
    return path


def in_channels(images):
    """Grey images as if they were coloured."""
    return images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=-1)


@pytest.mark.parametrize("sample", EVERY)
def test_values_and_sizes(tmp_path, sample):
    images = sample.images()
    found = read_folder(written(tmp_path, sample), min_images=1)
    assert found.rejected == []
    assert found.source_shape == images.shape[1:3]  # as the header tells it: other frames would be scaled
    np.testing.assert_allclose(in_channels(found.images), in_channels(images), rtol=1e-6, atol=sample.atol)
    assert found.names == ([f"sample.png[{k}]" for k in range(len(images))] if len(images) > 1 else ["sample.png"])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("sample", [each for each in EVERY if each.values[0].turns])
def test_orientations_are_applied_once(tmp_path, sample, orientation):
    path = written(tmp_path, sample, orientation, pixels=stored(sample.pixels, orientation))
    found, images = read_folder(path, min_images=1), sample.images()
    assert found.source_shape == images.shape[1:3]
    np.testing.assert_allclose(in_channels(found.images), in_channels(images), rtol=1e-6, atol=sample.atol)


def beside_a_good_file(path, **options):
    """What is read of a file beside a good one, and why other images are not read."""
    good = path.parent / "companion.png"
    Image.new("L", (9, 9), 200).save(good)
    found = read_folder([good, path], min_images=1, size=128, memory="64MB", **options)
    assert found.names[0] == good.name
    assert all(reason.isprintable() for _, reason in found.rejected)
    return found


def files_of(path):
    """The file, or those of a folder."""
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


@pytest.mark.parametrize("sample", EVERY)
def test_a_file_that_is_cut_short_is_refused_with_a_reason(tmp_path, sample):
    whole = beside_a_good_file(written(tmp_path, sample))
    assert (len(whole), whole.rejected) == (1 + len(sample.images()), [])
    for share in (0.9, 0.5, 0.1):
        (tmp_path / str(share)).mkdir()
        path = written(tmp_path / str(share), sample)
        for file in files_of(path):
            file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
        found = beside_a_good_file(path)
        assert found.rejected, share
        assert len(found) == 1 or sample.several
        same = [whole.names.index(name) for name in found.names]
        np.testing.assert_array_equal(in_channels(found.images), in_channels(whole.images[same]))


LIES = [
    pytest.param(each.values[0], lie, id=f"{each.id}-{k}", marks=each.marks)
    for each in EVERY
    for k, lie in enumerate(each.values[0].lies)
]


@pytest.mark.parametrize(("sample", "lie"), LIES)
def test_a_header_that_declares_more_than_there_is_is_refused(tmp_path, sample, lie):
    path = written(tmp_path, sample)
    lie(path)
    found = beside_a_good_file(path)
    assert len(found) == 1
    assert found.rejected


@pytest.mark.parametrize("sample", [each for each in EVERY if each.values[0].several])
def test_a_star_file_picks_and_orders_frames_of_any_file(tmp_path, sample):
    written(tmp_path, sample)
    images = sample.images()
    picked = [3, 0, 2] if len(images) > 3 else [0]
    rows = "".join(f"{k + 1:06}@sample.png\n" for k in picked)
    (tmp_path / "some.star").write_text(f"data_\nloop_\n_rlnImageName #1\n{rows}")
    found = read_folder(tmp_path / "some.star", min_images=1)
    assert found.frames.tolist() == picked
    np.testing.assert_allclose(in_channels(found.images), in_channels(images[picked]), rtol=1e-6, atol=sample.atol)
