"""Memory while files are read: at most what a refusal says that reading needs, and little for headers that lie."""

import re
import zlib
from importlib.util import find_spec

import numpy as np
import pytest

from kit.formats import SAMPLES, bmp_of, chunk, deep_png, filtered, header, jpeg_of, png_of
from kit.peaks import needs_peaks, peaks
from unpose.data import InputError, read_folder
from unpose.files import in_bytes

MIB = 2**20
REST = 12 * MIB
"""What a process takes beside the file: threads, tables of interpolation, the images."""

PACKAGES = {"em": "mrcfile", "formats": "h5py", "fits": "astropy", "dicom": "pydicom", "heic": "pillow_heif"}
READABLE = [sample for sample in SAMPLES if sample.extra is None or find_spec(PACKAGES[sample.extra])]
BY_NAME = {str(sample): sample for sample in SAMPLES}


def write(folder, sample, name, side=None):
    """A small file of a kind, or one of which every image has ``side`` rows and columns."""
    (folder / str(sample)).mkdir(exist_ok=True)
    path, pixels = folder / str(sample) / name, sample.pixels
    if side is not None:
        rows, columns = np.mgrid[:side, :side]
        grey = ((rows // 7 + columns // 5) % 251).astype(np.uint8)
        grey = grey > 100 if pixels.dtype == bool else grey.astype(pixels.dtype)
        if sample.several:
            pixels = np.stack([grey, grey[::-1]])
        elif pixels.ndim == 3:
            pixels = np.stack([grey] * min(pixels.shape), axis=int(np.argmin(pixels.shape)))
        else:
            pixels = grey
    sample.write(path, pixels, *[6] * (sample.turns and side is not None))  # a picture that must be turned
    return path


def told(path):
    """The memory that reading a file needs and the budget in which it can be read, as the refusal says."""
    with pytest.raises(InputError, match="raise memory to") as refusal:
        read_folder(path, size=64, min_images=1, memory="1MiB")
    found = re.search(r"needs ([\d.]+\w+) to be read.* raise memory to ([\d.]+\w+)", str(refusal.value))
    return in_bytes(found[1]), found[2]


def bomb(folder):
    """An honest 16-bit picture and, behind its last row, 160 MB of zeros."""
    packer, samples = zlib.compressobj(1), BY_NAME["png-colour-of-16-bits"].pixels
    packed = packer.compress(filtered(samples))
    packed += b"".join(packer.compress(bytes(2**20)) for _ in range(160)) + packer.flush()
    start = deep_png(samples).partition(b"IDAT")[0]
    (folder / "bomb.png").write_bytes(start[:-4] + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    return folder / "bomb.png"


@needs_peaks
@pytest.mark.parametrize(
    ("kinds", "side"),
    [(["png-animation", "png-colour", "tiff-colour-of-uint16-contig", "gif-still", "mrc-float32", "hdf5-packed"], 2000),
     pytest.param([str(sample) for sample in READABLE], 1500, marks=pytest.mark.slow)],
    ids=["some", "all"],
)  # fmt: skip
def test_honest_files_need_what_their_refusal_says_and_liars_nothing(tmp_path, kinds, side):
    kinds = [kind for kind in kinds if BY_NAME[kind] in READABLE]
    liars = [(sample, lie) for sample in READABLE for lie in sample.lies]
    lying = [write(tmp_path, sample, f"lie {k}") for k, (sample, _) in enumerate(liars)]
    for (_, lie), path in zip(liars, lying, strict=True):
        lie(path)
    large = [write(tmp_path, BY_NAME[kind], "large", side) for kind in kinds]
    needs = [told(path) for path in large]
    small = [write(tmp_path, sample, "small") for sample in READABLE]
    files = [(path, budget) for path, (_, budget) in zip(large, needs, strict=True)]
    files += [(path, None) for path in (*lying, bomb(tmp_path))]
    *found, (_, growth) = peaks(small, files)
    assert growth < 60 * MIB, "the bomb, which is read or refused"
    for kind, (needed, _), (count, growth) in zip(kinds, needs, found[: len(kinds)], strict=True):
        assert count >= 1, kind
        assert growth <= needed + REST, kind
    for path, (count, growth) in zip(lying, found[len(kinds) :], strict=True):
        assert count == 0, path
        assert growth < 16 * MIB, path


@pytest.mark.parametrize(
    ("kind", "declares", "most"),
    [("png-colour", png_of, 1300), ("jpeg-colour", jpeg_of, 100), ("jpeg-progressive", jpeg_of, 1300),
     ("bmp-colour", bmp_of, 1300)],
)  # fmt: skip
def test_pictures_of_12_000_pixels_a_side_fit_the_default_budget(tmp_path, kind, declares, most):
    path = write(tmp_path, BY_NAME[kind], "a")
    declares(12_000, 12_000)(path)
    assert header(path, 128).sizes == [(12_000, 12_000)]
    assert header(path, 128).cost < most * MIB


@needs_peaks
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("png-colour", 700), ("jpeg-colour", 100)])
def test_a_picture_of_12_000_pixels_a_side_is_read_at_a_reduced_size(tmp_path, kind, most):
    small, large = (write(tmp_path, BY_NAME[kind], str(side), side) for side in (40, 12_000))
    ((count, growth),) = peaks([small], [(large, None)])
    assert count == 1
    assert growth < most * MIB
