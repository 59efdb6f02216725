"""Pages that are channels: colours where there are three, refused where not; slices and times stay images."""

import numpy as np
import pytest
from PIL import Image

from unpose.data import read_images
from unpose.files.formats import frames, guarded, header
from unpose.files.frames import Unreadable


@pytest.fixture
def tifffile():
    return pytest.importorskip("tifffile", reason="tifffile, of the extra formats, is not installed")


def save(path, pages, description):
    """A TIFF by Pillow, one page after the other."""
    first, *others = [Image.fromarray(page) for page in pages]
    first.save(path, save_all=True, append_images=others, tiffinfo={270: description})
    return path


def read(path):
    with guarded():
        told, found = header(path, 64), list(frames(path, 64))
    assert [number for number, _ in found] == list(range(len(told.sizes)))
    assert told.sizes == [frame.shape[:2] for _, frame in found]
    assert told.colour == any(frame.ndim == 3 for _, frame in found)
    return [frame for _, frame in found], told.note


def refused(path):
    with guarded(), pytest.raises(Unreadable) as caught:
        header(path, 64)
    with guarded(), pytest.raises(Unreadable):
        list(frames(path, 64))
    return str(caught.value)


def stack(rng, *shape, kind=np.uint8):
    return rng.integers(0, 255, (*shape, 13, 7)).astype(kind)


def unit(values):
    return values.astype(np.float32) / np.float32({"B": 255, "H": 65535}.get(values.dtype.char, 1))


IMAGEJ = "ImageJ=1.54f\nimages={images}\n{axes}hyperstack=true\nmode=composite\nloop=false\nmin=0.0\nmax=255.0\n"
OME = (
    '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID='
    '"Image:0"><Pixels DimensionOrder="{order}" ID="Pixels:0" SizeC="{c}" SizeT="{t}" SizeX="7" SizeY="13" SizeZ="{z}" '
    'Type="uint8"><Channel ID="Channel:0:0" SamplesPerPixel="{samples}"/><TiffData/></Pixels></Image></OME>'
)


def imagej(images, **axes):
    return IMAGEJ.format(images=images, axes="".join(f"{name}={length}\n" for name, length in axes.items()))


def ome(order="XYCZT", c=1, z=1, t=1, samples=1):
    return OME.format(order=order, c=c, z=z, t=t, samples=samples)


def shaped(*shape, axes):
    return f'{{"shape": {list(shape)}, "axes": "{axes}"}}'


@pytest.mark.parametrize(
    ("positions", "description"),
    [(1, imagej(3, channels=3)), (2, imagej(6, channels=3, slices=2)), (2, imagej(6, channels=3, frames=2)),
     (1, ome(c=3)), (2, ome(c=3, z=2)), (2, ome("XYZCT", c=3, t=2)), (1, ome("XYZTC", c=3)),
     (1, shaped(3, 13, 7, axes="CYX")), (2, shaped(2, 3, 13, 7, axes="ZCYX")), (2, shaped(3, 13, 7, axes="CYX"))],
)  # fmt: skip
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_three_channels_are_the_colours_of_one_image(tmp_path, rng, positions, description, kind):
    pages = stack(rng, positions * 3, kind=kind)
    found, note = read(save(tmp_path / "a.tif", pages, description))
    assert "red, green and blue" in note
    np.testing.assert_array_equal(found, unit(np.moveaxis(pages.reshape(positions, 3, 13, 7), 1, -1)))


@pytest.mark.parametrize("count", [2, 4, 5])
def test_other_numbers_of_channels_are_refused(tmp_path, rng, count):
    for description in (
        imagej(2 * count, channels=count, frames=2),
        ome(c=count, z=2),
        ome("XYZCT", c=count, z=2),
        shaped(2, count, 13, 7, axes="TCYX"),
    ):
        reason = refused(save(tmp_path / "a.tif", stack(rng, 2 * count), description))
        assert f"has {count} channels at each position; give one channel each" in reason


@pytest.mark.parametrize(
    "description", [imagej(6, channels=3, slices=2) + "order=zct\n", ome("XYZCT", c=3, z=2), ome("XYTCZ", c=3, t=2),
                    shaped(3, 2, 13, 7, axes="CZYX")],
)  # fmt: skip
def test_channels_that_lie_apart_are_refused(tmp_path, rng, description):
    assert "each a stack of its own" in refused(save(tmp_path / "a.tif", stack(rng, 6), description))


@pytest.mark.parametrize(
    "description",
    ["", "three of something", imagej(6, slices=6), imagej(6, frames=6), imagej(6, channels=1, slices=6), ome(z=6),
     ome(t=6), shaped(6, 13, 7, axes="ZYX"), shaped(6, 13, 7, axes="QYX"), '{"shape": [3, 13, 7]}',
     # Not about these pages: a note kept from another file, planes of a set of files.
     imagej(4, channels=4), ome(c=3, z=6),
     # Nonsense.
     "{", "[" * 9999, '{"shape": 3, "axes": "C"}', '{"shape": [3, 13], "axes": "CYX"}', "<Pixels SizeC='x'>",
     imagej(0, channels=0), imagej(6, channels="9" * 5000), '{"shape": [-3, 13, 7], "axes": "CYX"}', ome("XYZT", c=3)],
)  # fmt: skip
def test_slices_times_and_mere_pages_are_images(tmp_path, rng, description):
    pages = stack(rng, 6)
    found, note = read(save(tmp_path / "a.tif", pages, description))
    assert note == ""
    np.testing.assert_array_equal(found, unit(pages))


def test_one_page_of_colour_is_one_image_however_it_counts_its_samples(tmp_path, rng):
    colour = rng.integers(0, 255, (13, 7, 3)).astype(np.uint8)
    for description in (ome(c=3, samples=3), imagej(1, channels=3), shaped(13, 7, 3, axes="YXS")):
        ((found,), note) = read(save(tmp_path / "a.tif", [colour], description))
        assert note == ""
        np.testing.assert_array_equal(found, unit(colour))
    assert "2 channels" in refused(save(tmp_path / "a.tif", [colour, colour], ome(c=6, samples=3)))


def test_pages_of_one_group_that_do_not_fit_cost_their_image_only(tmp_path, rng):
    pages = stack(rng, 9, kind=np.float32)
    pages[4, 0, 0] = np.nan
    uneven = [*pages[:8], pages[8, :11]]
    save(tmp_path / "a.tif", uneven, imagej(9, channels=3, slices=3))
    with guarded():
        found = dict(frames(tmp_path / "a.tif", 64))
        assert set(dict(frames(tmp_path / "a.tif", 64, wanted={0, 2}))) == {0, 2}
    np.testing.assert_array_equal(found[0], np.moveaxis(pages[:3], 0, -1))
    assert "NaN" in str(found[1])
    assert "not grey pictures of one size" in str(found[2])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_as_others_write_them(tmp_path, rng, tifffile, kind, order, big):
    two, three = stack(rng, 5, 2, kind=kind), stack(rng, 5, 3, kind=kind)
    ways = [{"ome": True, "metadata": {"axes": "ZCYX"}}, {"metadata": {"axes": "ZCYX"}}]
    if not big and kind != np.float64:
        ways.append({"imagej": True, "metadata": {"axes": "ZCYX"}})
    for way in ways:
        options = {"photometric": "minisblack", "byteorder": order, "bigtiff": big, **way}
        tifffile.imwrite(tmp_path / "a.tif", three, **options)
        np.testing.assert_array_equal(read(tmp_path / "a.tif")[0], unit(np.moveaxis(three, 1, -1)))
        tifffile.imwrite(tmp_path / "a.tif", two, **options)
        assert "2 channels" in refused(tmp_path / "a.tif")
        options["metadata"] = {"axes": "ZYX"}
        tifffile.imwrite(tmp_path / "a.tif", two[:, 0], **options)
        np.testing.assert_array_equal(read(tmp_path / "a.tif")[0], unit(two[:, 0]))


def test_a_folder_counts_each_position_once_and_lists_what_it_refuses(tmp_path, rng):
    save(tmp_path / "two.tif", stack(rng, 2), imagej(2, channels=2))
    save(tmp_path / "three.tif", stack(rng, 6), imagej(6, channels=3, slices=2))
    save(tmp_path / "time.tif", stack(rng, 5), imagej(5, frames=5))
    found = read_images(tmp_path)
    assert found.names == ["three.tif[0]", "three.tif[1]", *(f"time.tif[{k}]" for k in range(5))]
    assert found.images.shape == (7, 13, 7, 3)
    assert [name for name, _ in found.rejected] == ["two.tif"]
    assert found.notes == ["1 file: 3 channels of each position read as red, green and blue"]
