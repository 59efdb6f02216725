"""Damaged image files: each must be read or rejected with a reason; none may crash, hang or stop the run.

Good files of every format are mutated: bits are flipped, bytes overwritten with extreme numbers (mostly in the
headers), and blocks of bytes cut, repeated, zeroed or replaced by blocks of other files. A batch of them, together with
two good images, is read as a user would read a folder, in another process, so that a crash
inside a decoder is noticed. `fuzz.py` is the command.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

from unpose.data import read_folder

BATCH_SECONDS = 3600
COMPANIONS = ("0.png", "1.png")
"""Good images beside the damaged ones, so that every batch has enough readable images."""

OUTCOMES = ("read", "partly read", "listed", "lost", "crashed")


def good_files(folder):
    """Write one small good file of every format that the installed libraries can write: name -> path."""
    rng = np.random.default_rng(0)
    grey, colour = rng.integers(0, 255, (23, 19)).astype(np.uint8), rng.integers(0, 255, (23, 19, 3)).astype(np.uint8)
    stack = rng.integers(0, 255, (5, 13, 11)).astype(np.uint8)
    smooth = np.kron(grey[:4, :3], np.ones((8, 8), np.uint8))

    def picture(name, array, mode=None, **options):
        image = Image.fromarray(array)
        (image.convert(mode) if mode else image).save(folder / name, **options)

    exif = Image.Exif()
    exif[0x0112] = 6
    picture("grey.png", grey)
    picture("colour.png", colour)
    picture("palette.png", colour, "P", transparency=3)
    picture("alpha.png", np.dstack([colour, grey]))
    picture("deep.png", (grey.astype(np.uint16) * 257))
    picture("bit.png", grey, "1")
    picture("exif.jpg", smooth, exif=exif)
    picture("colour.jpg", colour, quality=60)
    picture("progressive.jpg", colour, progressive=True)
    picture("cmyk.jpg", colour, "CMYK")
    for name, options in {
        "raw": {}, "lzw": {"compression": "tiff_lzw"}, "deflate": {"compression": "tiff_deflate"},
        "jpeg": {"compression": "jpeg"}, "packbits": {"compression": "packbits"},
    }.items():  # fmt: skip
        picture(f"{name}.tif", colour, **options)
    picture("group4.tif", grey, "1", compression="group4")
    picture("float.tif", grey.astype(np.float32))
    pages = [Image.fromarray(page) for page in stack]
    pages[0].save(folder / "pages.tif", save_all=True, append_images=pages[1:])
    description = "ImageJ=1.53t\nimages=3\nchannels=3\nhyperstack=true\n"
    pages[0].save(folder / "channels.tif", save_all=True, append_images=pages[1:3], description=description)
    picture("lossy.webp", colour)
    picture("lossless.webp", np.dstack([colour, grey]), lossless=True)
    pages[0].save(folder / "film.webp", save_all=True, append_images=pages[1:])
    picture("grey.bmp", grey)
    picture("colour.bmp", colour)
    picture("still.gif", grey)
    pages[0].save(folder / "film.gif", save_all=True, append_images=pages[1:])
    picture("grey.pgm", grey)
    picture("colour.ppm", colour)
    (folder / "plain.ppm").write_text("P2\n3 2\n255\n1 2 3\n4 5 6\n")
    deep = rng.integers(0, 65536, (23, 19, 4))
    for name, colour_type, channels in (("rgb", 2, 3), ("la", 4, 2), ("rgba", 6, 4)):
        (folder / f"{name}16.png").write_bytes(deep_png(deep[..., :channels], colour_type))
        (folder / f"{name}16-adam7.png").write_bytes(deep_png(deep[..., :channels], colour_type, interlaced=True))
    (folder / "deep.ppm").write_bytes(b"P6\n19 23\n65535\n" + deep[..., :3].astype(">u2").tobytes())
    text = " ".join(str(value % 4096) for value in deep[:5, :7, :3].ravel())
    (folder / "deep-plain.ppm").write_text(f"P3\n7 5\n4095\n{text}\n")
    np.save(folder / "stack.npy", stack)
    np.save(folder / "fortran.npy", np.asfortranarray(stack.astype(np.float32)))
    np.savez(folder / "stored.npz", images=stack, y=np.arange(5))
    np.savez_compressed(folder / "packed.npz", x=stack)
    tifffile.imwrite(folder / "deep.tif", colour.astype(np.uint16) * 257, photometric="rgb")
    tifffile.imwrite(folder / "double.tif", stack.astype(np.float64), compression="zlib")
    _write_optional_formats(folder, stack)
    return {path.name: path for path in sorted(folder.iterdir())}


def deep_png(words, colour_type, interlaced=False):
    """A 16-bit PNG of samples (h, w, c), in colour or with alpha, which Pillow cannot write."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [words[i::down, j::across] for i, j, down, across in passes] if interlaced else [words]
    # The rows use the five filters in turn. The bytes are noise, so they are valid under every filter.
    rows = [bytes([k % 5]) + row.astype(">u2").tobytes() for part in parts for k, row in enumerate(part)]
    sizes = (words.shape[1].to_bytes(4, "big"), words.shape[0].to_bytes(4, "big"))
    start = chunk(b"IHDR", b"".join(sizes) + bytes([16, colour_type, 0, 0, interlaced]))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")


def _write_optional_formats(folder, stack):
    """Write the formats whose libraries are optional, if they are installed."""
    try:
        import mrcfile

        with mrcfile.new(folder / "stack.mrcs") as file:
            file.set_data(stack.astype(np.float32))
    except ImportError:
        pass
    try:
        import h5py

        for name, version in (("plain", "earliest"), ("latest", "latest")):
            with h5py.File(folder / f"{name}.h5", "w", libver=version) as file:
                file.create_dataset("g/images", data=stack)
                file.create_dataset("g/packed", data=stack, chunks=(2, 13, 11), compression="gzip", shuffle=True)
    except ImportError:
        pass
    try:
        import zarr

        for version in (2, 3):
            array = zarr.create_array(
                folder / f"v{version}.zarr", shape=stack.shape, chunks=(2, 13, 11), dtype="u1", zarr_format=version
            )
            array[:] = stack
    except ImportError:
        pass

    try:
        from astropy.io import fits

        fits.writeto(folder / "image.fits", stack[0].astype(np.float32))
        fits.writeto(folder / "stack.fits", stack.astype(np.int16))
        fits.CompImageHDU(stack[0].astype(np.int32)).writeto(folder / "packed.fits")
    except ImportError:
        pass
    try:
        import pydicom

        for name, pixels, elements in (
            ("grey.dcm", stack[:1, :12].astype(np.uint16), {"WindowCenter": 128, "WindowWidth": 200}),
            ("frames.dcm", stack[:4, :12], {"NumberOfFrames": 4}),
        ):
            _write_dicom(pydicom, folder / name, pixels, elements)
    except ImportError:
        pass
    try:
        import pillow_heif

        large = Image.fromarray(np.kron(np.dstack([stack[0], stack[1], stack[2]]), np.ones((8, 8, 1), np.uint8)))
        pillow_heif.from_pillow(large).save(folder / "photograph.heic", quality=60)
    except ImportError:
        pass


def _write_dicom(pydicom, path, pixels, elements):
    """Write frames (n, h, w) as a DICOM file without compression."""
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    file.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    file.Rows, file.Columns = pixels.shape[1:]
    file.SamplesPerPixel, file.PhotometricInterpretation, file.PixelRepresentation = 1, "MONOCHROME2", 0
    file.BitsAllocated = file.BitsStored = 8 * pixels.dtype.itemsize
    file.HighBit, file.PixelData = file.BitsStored - 1, pixels.tobytes()
    for name, value in elements.items():
        setattr(file, name, value)
    file.save_as(path, enforce_file_format=True)


def mutated(data, other, rng):
    """The bytes of a file after one to four mutations."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not data:
            break
        # Half of the mutations are in the first 256 bytes, where most formats keep sizes and offsets.
        at = int(rng.integers(0, min(len(data), 256) if rng.random() < 0.5 else len(data)))
        length = int(rng.integers(1, 33))
        match int(rng.integers(0, 8)):
            case 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                data[at] = int(rng.integers(0, 256))
            case 2:
                value = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]))
                data[at : at + 4] = value.to_bytes(4, "little" if rng.random() < 0.5 else "big")
            case 3:
                del data[at:]
            case 4:
                del data[at : at + length]
            case 5:
                data[at:at] = data[at : at + length] * int(rng.integers(1, 9))
            case 6:
                data[at : at + length] = bytes(length)
            case 7:
                start = int(rng.integers(0, max(1, len(other))))
                data[at : at + length] = other[start : start + length]
    return bytes(data)


def with_sums(data):
    """Repair the checksums of a PNG's chunks, so that a mutation gets past the first check."""
    data, at = bytearray(data), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(data)


def mutated_inside(data, other, rng):
    """A PNG whose rows were mutated before compression: the checksum is right, the filters are not."""
    at = data.index(b"IDAT") - 4
    end = at + 8 + int.from_bytes(data[at : at + 4], "big")
    packed = zlib.compress(mutated(zlib.decompress(data[at + 8 : end]), other, rng))
    return with_sums(data[:at] + len(packed).to_bytes(4, "big") + b"IDAT" + packed + bytes(4) + data[end + 4 :])


def write_mutant(good, name, target, rng):
    """Write a mutated copy of a good file; of a Zarr folder one file is mutated."""
    other = rng.choice([path for path in good.values() if path.is_file()])
    if good[name].is_dir():
        shutil.copytree(good[name], target)
        victim = rng.choice(sorted(path for path in target.rglob("*") if path.is_file()))
        victim.write_bytes(mutated(victim.read_bytes(), other.read_bytes(), rng))
    else:
        inside, summed = (name.endswith(".png") and rng.random() < share for share in (0.3, 0.8))
        data = (mutated_inside if inside else mutated)(good[name].read_bytes(), other.read_bytes(), rng)
        target.write_bytes(with_sums(data) if summed else data)


def outcomes(folder):
    """Read a folder as a user would: what happened to every file, and the reasons given."""
    found = read_folder(folder, memory=2**30)
    read, listed = ({name.partition("[")[0] for name in names} for names in (found.names, dict(found.rejected)))
    if not np.isfinite(found.images).all():
        raise ValueError("pixels that are not finite were accepted")

    def outcome(name):
        if name in read:
            return "partly read" if name in listed else "read"
        return "listed" if name in listed else "lost"

    return {path.name: outcome(path.name) for path in folder.iterdir()}, [reason for _, reason in found.rejected]


def in_child(folder):
    """:func:`outcomes` in another process; if that crashes or hangs, of each half, to find the file that caused it."""
    command = [sys.executable, __file__, str(folder)]
    try:
        child = subprocess.run(command, capture_output=True, timeout=BATCH_SECONDS, check=False)
        if child.returncode == 0:  # messages of libtiff on stderr are ignored
            return json.loads(child.stdout)
        message = child.stderr.decode(errors="replace")[-300:] or f"exit status {child.returncode}"
    except subprocess.TimeoutExpired:
        message = f"no answer in {BATCH_SECONDS} s"
    mutants = [path for path in sorted(folder.iterdir()) if path.name not in COMPANIONS]
    if len(mutants) == 1:
        print(f"{mutants[0].name}: {message}")
        return {mutants[0].name: "crashed"}, []
    found, reasons = {}, []
    for half in (mutants[: len(mutants) // 2], mutants[len(mutants) // 2 :]):
        with tempfile.TemporaryDirectory() as place:
            for path in (*half, *(folder / name for name in COMPANIONS)):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, Path(place) / path.name)
            some, why = in_child(Path(place))
        found |= some
        reasons += why
    return found, reasons


def run(files, seed, folder, batch=500, show=None):
    """Count the outcomes for each good file."""
    (folder / "good").mkdir()
    good = good_files(folder / "good")
    kinds = sorted(good)
    counts = {kind: Counter(dict.fromkeys(OUTCOMES, 0)) for kind in kinds}
    for start in range(0, files, batch):
        place = folder / "batch"
        place.mkdir()
        for name in COMPANIONS:
            shutil.copy(good["grey.png"], place / name)
        names = {}
        for number in range(start, min(start + batch, files)):
            kind = kinds[number % len(kinds)]
            name = f"{number:06}-{kind}"
            write_mutant(good, kind, place / name, np.random.default_rng([seed, number]))
            names[name] = kind
        found, reasons = in_child(place)
        for name, kind in names.items():
            counts[kind][found[name]] += 1
        if show is not None:
            show(start + len(names), reasons)
        shutil.rmtree(place)
    return counts


if __name__ == "__main__":  # the child of in_child
    print(json.dumps(outcomes(Path(sys.argv[1]))))
