"""read_folder: whatever a folder contains, every file is read or rejected with a reason, and none is changed."""

import json
import os
import struct
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unpose
from kit.formats import by_numpy, by_pillow, hdf5, noise, unit, zarr
from unpose.data import ImageSet, InputError, read_folder
from unpose.files import ImagesInPieces


@pytest.fixture
def picture(rng):
    """Writes a random grey image, the same for the same name."""

    def write(path, shape=(13, 7), **options):
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = np.frombuffer(os.fsencode(path.name), np.uint8).tolist()
        values = np.random.default_rng(seed).integers(0, 255, shape).astype(np.uint8)
        with path.open("wb") as file:  # names of arbitrary bytes, which Pillow cannot open by itself
            Image.fromarray(values).save(file, format="PNG", **options)
        return values

    return write


def reasons(found):
    return dict(found.rejected)


def test_a_folder_in_a_stable_order(tmp_path, picture):
    values = {name: picture(tmp_path / name) for name in ("b.png", "a/z.png", "a/b/c.png", "B.png", "a.png")}
    found = read_folder(tmp_path)
    assert isinstance(found, ImageSet)
    assert found.names == ["B.png", "a.png", "b.png", "a/z.png", "a/b/c.png"]
    assert found.images.shape == (5, 13, 7)
    assert found.images.dtype == np.float32
    for image, name, path, frame in zip(found.images, found.names, found.paths, found.frames, strict=True):
        np.testing.assert_allclose(image, values[name] / 255, atol=1e-7)
        assert path == tmp_path / name
        assert frame == 0
    assert found.canvas == "all images are 13 x 7 and keep their size"
    assert (found.rejected, found.notes, found.labels) == ([], [], None)


def test_one_folder_per_class_gives_labels(tmp_path, picture):
    for name in ("cat/1.png", "cat/2.png", "dog/more/3.png"):
        picture(tmp_path / name)
    assert read_folder(tmp_path).labels == ["cat", "cat", "dog"]
    picture(tmp_path / "stray.png")
    assert read_folder(tmp_path).labels is None


def test_folders_of_one_image_each_or_a_single_folder_give_no_labels(tmp_path, picture):
    for name in ("a/1.png", "a/2.png"):
        picture(tmp_path / "single" / name)
    for name in ("a/1.png", "b/2.png", "c/3.png"):
        picture(tmp_path / "each" / name)
    assert read_folder(tmp_path / "single").labels is None
    assert read_folder(tmp_path / "each").labels is None


@pytest.mark.parametrize(
    "names",
    [("2024-01-03", "2024-01-04"), ("20240103", "20240104_1530"), ("2023", "2024"), ("3.1.2024", "04.01.24"),
     ("January", "Feb 2024"), ("3 March 2024", "2024-Apr-02"), ("240103", "240104"), ("run 1", "Run_02"),
     ("2024-01", "2024-02"), ("2024-01-03T10-15-00", "2024_01_04 11.20"),
     ("2024-01-03", "2024-01-04", "2024-01-09 night"), ("20240103_station", "20240104_station"),
     ("dose 3.1.2024", "dose 4.1.2024", "control 4.1.2024"),
     ("2024-01-03", "2024-01-04", "unsorted")],
)  # fmt: skip
def test_folders_named_by_date_or_run_are_not_classes(tmp_path, picture, names):
    for name in names:
        for k in range(2):
            picture(tmp_path / name / f"{k}.png")
    found = read_folder(tmp_path)
    assert found.labels is None
    assert found.notes == ["Folders are named by date or by run, so they are not taken as classes"]


@pytest.mark.parametrize(
    "names",
    [("0", "7"), ("cat", "2024-01-03"), ("decagon", "marble"), ("class 1", "class 2"),
     ("2024-01-03 control", "2024-01-03 dose"), ("120000", "980000"), ("marten", "sepia"), ("1e2", "20x"),
     ("2024-01-03 control", "2024-01-04 dose"), ("cat", "dog", "2024-01-03")],
)  # fmt: skip
def test_other_folder_names_are_classes(tmp_path, picture, names):
    for name in names:
        for k in range(2):
            picture(tmp_path / name / f"{k}.png")
    found = read_folder(tmp_path)
    assert set(found.labels) == set(names)
    assert found.notes == []


def test_a_folder_with_images_and_other_files(tmp_path, picture, rng):
    for name in ("good1.png", "good2.png"):
        picture(tmp_path / name)
    whole = (tmp_path / "good1.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[:-30])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "renamed.jpg").write_bytes(whole)
    (tmp_path / "words.png").write_text("not a picture")
    (tmp_path / "film.mp4").write_bytes(rng.bytes(100))
    picture(tmp_path / "one.png", (1, 1))
    for name in ("notes.txt", "table.CSV", ".hidden.png", "Thumbs.db"):
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    found = read_folder(tmp_path)
    assert found.names == ["good1.png", "good2.png", "renamed.jpg"]
    assert set(reasons(found)) == {"cut.png", "empty.jpg", "words.png", "film.mp4", "one.png", "gone.png"}
    assert reasons(found)["empty.jpg"] == "is empty"
    assert all(reason.isprintable() for reason in reasons(found).values())
    assert found.notes == ["4 files ignored: hidden, or not an image by name"]


def test_links_are_not_followed_in_circles(tmp_path, picture):
    for name in ("in/1.png", "in/2.png", "out/3.png"):
        picture(tmp_path / name)
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "elsewhere").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "out" / "3.png")
    found = read_folder(tmp_path / "in")
    assert found.names == ["1.png", "2.png", "link.png"]
    assert found.notes == ["2 linked folders not followed"]


def test_a_loop_of_links_is_named_and_the_rest_is_read(tmp_path, picture):
    for name in ("1.png", "2.png"):
        picture(tmp_path / "in" / name)
    (tmp_path / "in" / "a.png").symlink_to("b.png")
    (tmp_path / "in" / "b.png").symlink_to("a.png")
    found = read_folder(tmp_path / "in")
    assert found.names == ["1.png", "2.png"]
    assert set(reasons(found)) == {"a.png", "b.png"}
    assert all("symbolic links" in reason for reason in reasons(found).values())
    given = [tmp_path / "in" / name for name in ("a.png", "1.png", "2.png")]
    assert reasons(read_folder(given)) == {"a.png": "is a link that leads nowhere"}
    with pytest.raises(InputError, match=r"a\.png does not exist"):
        read_folder(given[0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_does_not_hang_the_run(tmp_path, picture):
    for name in ("1.png", "2.png"):
        picture(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.png")
    assert reasons(read_folder(tmp_path)) == {"pipe.png": "is not a regular file"}


def test_hostile_names(tmp_path, picture):
    names = ["quo\"te's.png", "two\nlines.png", "<script>alert(1)<", "\x1b[31mred.png", "-rf.png", "a b.png"]
    raw = [os.fsdecode(b"latin-\xe9.png"), os.fsdecode(b"\xff\xfe.png")]
    for name in names + raw:
        try:
            picture(tmp_path / name)
        except OSError:
            pytest.skip("this file system refuses such names")
    found = read_folder(tmp_path)
    assert len(found) == len(names + raw)
    assert all(name.isprintable() and name.encode("utf-8") for name in found.names)
    assert {"two\\nlines.png", "latin-\\xe9.png", "\\xff\\xfe.png"} < set(found.names)
    assert all(path.read_bytes() for path in found.paths), "the true names survive"
    bad = tmp_path / os.fsdecode(b"bad\xff\n.png")
    bad.touch()
    assert read_folder(tmp_path).rejected == [("bad\\xff\\n.png", "is empty")]


def test_sources_are_never_modified(tmp_path, picture):
    for name in ("1.png", "2.png"):
        picture(tmp_path / name, (31, 17))
    (tmp_path / "bad.tif").write_bytes(b"II*\0nonsense")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    read_folder(tmp_path, size=8)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


def test_it_is_one_of_the_names_at_the_top():
    assert unpose.read_folder is read_folder
    assert "read_folder" in dir(unpose)
    with pytest.raises(AttributeError, match=r"has no attribute 'cluser'; it has .*cluster"):
        unpose.cluser  # noqa: B018


# Errors of the whole input -------------------------------------------------------------------------------------------


def test_too_few(tmp_path, picture):
    with pytest.raises(InputError, match="does not exist"):
        read_folder(tmp_path / "missing")
    with pytest.raises(InputError, match="holds no image files; at least"):
        read_folder(tmp_path)
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(InputError, match=r"holds no image files \(1 other file\)"):
        read_folder(tmp_path)
    picture(tmp_path / "one.png")
    with pytest.raises(InputError, match="only one image could be read"):
        read_folder(tmp_path)
    with pytest.raises(InputError, match="only one image could be read"):
        read_folder(tmp_path / "one.png")
    for k in range(7):
        (tmp_path / f"bad{k}.png").touch()
    with pytest.raises(InputError) as caught:
        read_folder(tmp_path)
    assert "bad0.png is empty" in str(caught.value)
    assert "and 2 more" in str(caught.value)


def test_the_memory_budget_is_checked_before_anything_is_read(tmp_path):
    stack = np.zeros((1000, 61, 59), np.uint8)
    np.save(tmp_path / "a.npy", stack)
    with pytest.raises(InputError, match=r"declares 1,000 images that take 14.4MB.*budget of 8.4MB"):
        read_folder(tmp_path / "a.npy", memory=8 * 2**20)
    assert read_folder(tmp_path / "a.npy", memory=8 * 2**20, size=16).images.shape == (1000, 16, 15)
    for k in range(2, 5):
        np.save(tmp_path / f"{k}.npy", stack[:250])
    (tmp_path / "a.npy").unlink()
    with pytest.raises(InputError, match=r"750 images of 61 x 59 take 10.8MB"):
        read_folder(tmp_path, memory=16 * 2**20)


@pytest.mark.extra("formats")
def test_one_file_that_declares_too_much_does_not_stop_the_others(tmp_path, picture):
    import h5py

    for name in ("1.png", "2.png"):
        picture(tmp_path / name)
    with h5py.File(tmp_path / "deep.h5", "w") as file:
        file.create_dataset("images", shape=(900_000, 64, 64), dtype="f4", chunks=(100, 64, 64))
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file.create_dataset("images", shape=(5, 9000, 9000), dtype="f8", chunks=(5, 9000, 1000))
    found = read_folder(tmp_path)
    assert len(found) == 2
    assert "900,000 images" in reasons(found)["deep.h5"]
    assert "GB to be read" in reasons(found)["wide.h5"]


def test_the_error_for_an_image_beyond_the_budget_says_what_to_do(tmp_path, picture):
    for name in ("1.png", "2.png", "large.png"):
        picture(tmp_path / name)
    large = bytearray((tmp_path / "large.png").read_bytes())
    large[16:24] = struct.pack(">II", 14_000, 13_000)
    large[29:33] = struct.pack(">I", zlib.crc32(large[12:29]))
    (tmp_path / "large.png").write_bytes(large)
    assert reasons(read_folder(tmp_path, memory="300MB")) == {
        "large.png": "at 13000 x 14000 pixels needs 194.6MB to be read, more than the 150MB that a memory budget of "
        "300MB has for it; raise memory to 689.2MB, or crop it or scale it down"
    }
    assert "damaged" in reasons(read_folder(tmp_path, memory="689.2MB"))["large.png"]  # it is decoded then


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": 3}, "size must be"), ({"memory": 4}, "memory must be"), ({"colour": "cmyk"}, "colour must be"),
     ({"n_jobs": 0}, "n_jobs must be")],
)  # fmt: skip
def test_options_are_checked(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        read_folder(tmp_path, **options)


# One array -----------------------------------------------------------------------------------------------------------


def test_mixed_sizes_on_one_canvas(tmp_path, picture):
    for name, shape in (("1.png", (31, 17)), ("2.png", (200, 300)), ("3.png", (41, 41)), ("4.png", (2, 41))):
        picture(tmp_path / name, shape)
    found = read_folder(tmp_path)
    assert found.images.shape == (4, 41, 41)  # the median of the longer sides
    assert "from 31 to 300 pixels" in found.canvas
    assert "41 x 41" in found.canvas
    assert read_folder(tmp_path, size=20).images.shape == (4, 20, 20)


def test_colour_only_if_an_image_is_coloured(tmp_path, rng):
    grey = rng.integers(0, 255, (13, 7)).astype(np.uint8)
    Image.fromarray(grey).save(tmp_path / "a.png")
    Image.fromarray(np.repeat(grey[..., None], 3, axis=-1)).save(tmp_path / "b.png")
    found = read_folder(tmp_path)
    assert found.images.shape == (2, 13, 7)
    np.testing.assert_array_equal(found.images[0], found.images[1])  # so that clustering sees that they are copies
    assert read_folder(tmp_path, colour="rgb").images.shape == (2, 13, 7, 3)
    colour = np.repeat(grey[..., None], 3, axis=-1)
    colour[5, 3] = (255, 0, 0)
    Image.fromarray(colour).save(tmp_path / "c.png")
    found = read_folder(tmp_path)
    assert found.images.shape == (3, 13, 7, 3)
    np.testing.assert_allclose(found.images[2], colour / 255, atol=1e-6)
    np.testing.assert_allclose(found.images[0], np.repeat(grey[..., None], 3, axis=-1) / 255, atol=1e-6)
    assert read_folder(tmp_path, colour="grey").images.shape == (3, 13, 7)


def test_a_canvas_that_is_given_is_reached_in_one_step(tmp_path, picture):
    for name, shape in (("1.png", (31, 17)), ("2.png", (31, 17)), ("3.png", (62, 34))):
        picture(tmp_path / name, shape)
    run = read_folder([tmp_path / "1.png", tmp_path / "2.png"])
    again = read_folder(tmp_path, size=(31, 17))  # alone, these sizes would give a square canvas
    assert again.images.shape == (3, 31, 17)
    np.testing.assert_array_equal(again.images[:2], run.images)
    assert "to fit 31 x 17" in again.canvas
    same = read_folder([tmp_path / "1.png", tmp_path / "2.png"], size=(31, 17))
    assert same.canvas == run.canvas
    for wrong in ((31,), (31, 1), (31, 17, 3)):
        with pytest.raises(ValueError, match="size must be one number, or height and width"):
            read_folder(tmp_path, size=wrong)


def test_constant_images_are_kept(tmp_path):
    np.save(tmp_path / "a.npy", np.full((3, 13, 7), 5.0))
    assert (read_folder(tmp_path / "a.npy").images == 5).all()


def test_names_and_frame_numbers_of_a_stack(tmp_path, rng):
    stack = rng.random((5, 13, 7)).astype(np.float32)
    stack[2, 0, 0] = np.nan
    np.save(tmp_path / "a.npy", stack)
    pages = [Image.fromarray(page) for page in stack]
    pages[0].save(tmp_path / "b.tif", save_all=True, append_images=pages[1:])
    found = read_folder(tmp_path)
    kept = [0, 1, 3, 4]
    assert found.names == [f"a.npy[{k}]" for k in kept] + [f"b.tif[{k}]" for k in kept]
    assert found.frames.tolist() == kept * 2
    np.testing.assert_array_equal(found.images, np.concatenate([stack[kept]] * 2))
    assert set(reasons(found)) == {"a.npy[2]", "b.tif[2]"}
    np.testing.assert_array_equal(read_folder(tmp_path / "b.tif").images, stack[kept])


def test_a_list_of_paths_is_read_in_its_order(tmp_path, picture, rng):
    values = {name: picture(tmp_path / name) for name in ("x/a.png", "x/b.png", "y/c.png", "y/d.png")}
    order = ["y/d.png", "x/b.png", "y/c.png", "x/a.png"]
    for given in ([tmp_path / name for name in order], tuple(str(tmp_path / name) for name in order)):
        found = read_folder(given)
        assert found.names == order
        assert found.paths == [tmp_path / name for name in order]
        assert found.labels == ["y", "x", "y", "x"]
        np.testing.assert_allclose(found.images, np.stack([values[name] for name in order]) / 255, atol=1e-7)
    assert read_folder((tmp_path / "x").glob("*.png")).labels is None
    np.savez(tmp_path / "s.npz", left=rng.random((3, 13, 7)), right=rng.random((2, 13, 7)))
    mixed = read_folder([tmp_path / "y", f"{tmp_path / 's.npz'}::right", tmp_path / "gone.png"])
    assert mixed.names == ["y/c.png", "y/d.png", "s.npz[0]", "s.npz[1]"]
    assert reasons(mixed) == {"gone.png": "does not exist"}
    for bad in ([], [tmp_path / "gone.png"]):
        with pytest.raises(InputError, match="the list"):
            read_folder(bad)


def test_arrays_are_refused_with_what_brings_them_to_one_size(tmp_path, picture):
    picture(tmp_path / "a.png")
    for given, place in (([np.zeros((31, 17))], 0), ([tmp_path / "a.png", np.zeros((31, 17))], 1)):
        with pytest.raises(TypeError, match=rf"an object of type ndarray at {place}; unpose\.images\.onto_one_canvas"):
            read_folder(given)


def test_what_was_read_is_taken_where_images_are(tmp_path, rng):
    np.save(tmp_path / "stack.npy", rng.random((3, 17, 13)))
    found = read_folder(tmp_path)
    np.testing.assert_array_equal(np.asarray(found), found.images)
    assert np.asarray(found, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(found), found.images)
    for function in (
        lambda images: unpose.nearest(images, 1).distances, lambda images: unpose.align_stack(images).mean,
        lambda images: unpose.posed(images, copies=2).images,
        lambda images: [str(each) for each in unpose.dedupe.find_duplicates(images)],
    ):  # fmt: skip
        np.testing.assert_array_equal(function(found), function(found.images))


def test_an_array_is_selected_by_its_name(tmp_path, rng):
    first, second = rng.random((5, 13, 7)), rng.random((3, 13, 7))
    np.savez(tmp_path / "a.npz", x_train=first, x_test=second)
    with pytest.raises(InputError, match="does not exist"):
        read_folder(f"{tmp_path}::x")  # a folder has no arrays
    with pytest.raises(InputError, match="FILE::NAME"):
        read_folder(tmp_path / "a.npz")
    np.testing.assert_allclose(read_folder(f"{tmp_path / 'a.npz'}::x_test").images, second, atol=1e-6)


@pytest.mark.extra("em")
def test_a_star_file_selects_and_orders_images(tmp_path, rng):
    import mrcfile

    job = tmp_path / "Extract" / "job1"
    job.mkdir(parents=True)
    stacks = {name: rng.random((5, 13, 7)).astype(np.float32) for name in ("one", "two")}
    for name, stack in stacks.items():
        with mrcfile.new(job / f"{name}.mrcs") as file:
            file.set_data(stack)
    header = (
        "\ndata_optics\n\nloop_\n_rlnOpticsGroup #1\n1\n\ndata_particles\n\nloop_\n_rlnDefocusU #1\n_rlnImageName #2\n"
    )
    rows = [("two", 3), ("one", 1), ("two", 1), ("one", 9), ("one", 1), ("three", 1)]
    lines = [f"1.5 {number:06}@Extract/job1/{name}.mrcs" for name, number in rows]
    (job / "particles.star").write_text(header + "\n".join(lines) + "\n\n")
    found = read_folder(job / "particles.star")
    assert found.names == ["two.mrcs[2]", "one.mrcs[0]", "two.mrcs[0]"]
    np.testing.assert_array_equal(found.images, [stacks["two"][2], stacks["one"][0], stacks["two"][0]])
    assert reasons(found) == {
        "one.mrcs[8]": "is not in the stack",
        "one.mrcs[0]": "is listed more than once",
        "three.mrcs": "does not exist",
    }
    (job / "empty.star").write_text("data_\nloop_\n_rlnDefocusU #1\n1.5\n")
    with pytest.raises(InputError, match="_rlnImageName"):
        read_folder(job / "empty.star")


@pytest.mark.extra("formats")
def test_a_zarr_folder_inside_a_folder_is_one_file(tmp_path, picture, rng):
    import zarr

    picture(tmp_path / "a.png")
    array = zarr.create_array(tmp_path / "b.zarr", shape=(3, 13, 7), chunks=(1, 13, 7), dtype="f4")
    array[:] = rng.random((3, 13, 7))
    assert read_folder(tmp_path).names == ["a.png", "b.zarr[0]", "b.zarr[1]", "b.zarr[2]"]
    assert len(read_folder(tmp_path / "b.zarr")) == 3


def test_the_result_does_not_depend_on_the_threads(tmp_path, picture):
    for k in range(40):
        picture(tmp_path / f"{k}.png", (11 + k % 5, 13))
    seen = []
    one, many = (
        read_folder(tmp_path, n_jobs=1),
        read_folder(tmp_path, n_jobs=7, progress=lambda *told: seen.append(told)),
    )
    assert one.images.tobytes() == many.images.tobytes()
    assert one.names == many.names
    assert seen[-1] == ("images", 40, 40)
    assert {stage for stage, _, _ in seen} == {"headers", "images"}


def test_keyboard_interrupts_are_not_swallowed(tmp_path, picture):
    for k in range(3):
        picture(tmp_path / f"{k}.png")

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_folder(tmp_path, progress=interrupt)


def test_real_arrays(real_data):
    real_data("chula_rbc.npz")  # or skips
    found = read_folder(Path(os.environ["UNPOSE_DATA"]) / "chula_rbc.npz")
    assert found.images.shape == (8420, 40, 40)
    assert 0 <= found.images.min() < found.images.max() <= 1


@pytest.mark.slow
def test_damaged_files_are_read_or_rejected(tmp_path):
    program = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    words = [
        sys.executable,
        program,
        "--only",
        "images",
        "--cases",
        "60",
        "--seed",
        "11",
        "--out",
        tmp_path / "found.json",
    ]
    subprocess.run(words, check=True, capture_output=True)
    counts = json.loads((tmp_path / "found.json").read_text())["images"]
    assert sum(sum(row.values()) for row in counts.values()) == 60
    assert not any(row["lost"] or row["crashed"] for row in counts.values())
    assert sum(row["read"] for row in counts.values()) > 6
    assert sum(row["listed"] for row in counts.values()) > 14


def test_an_empty_stack_is_rejected(tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, 9, 9), np.float32))
    np.save(tmp_path / "some.npy", np.random.default_rng(0).random((3, 9, 9)))
    found = read_folder(tmp_path)
    assert len(found) == 3
    assert reasons(found) == {"none.npy": "is a stack of no images"}


def test_a_list_of_star_files_is_read_in_its_order(tmp_path, picture, rng):
    stacks = {name: rng.random((5, 13, 7)).astype(np.float32) for name in ("one", "two")}
    for name, rows in (("one", (4, 2)), ("two", (1, 5, 3))):
        np.save(tmp_path / f"{name}.npy", stacks[name])
        lines = "".join(f"{number:06}@{name}.npy\n" for number in rows)
        (tmp_path / f"{name}.star").write_text(f"data_\nloop_\n_rlnImageName #1\n{lines}")
    picture(tmp_path / "first.png")
    picture(tmp_path / "last.png")
    found = read_folder([tmp_path / name for name in ("first.png", "two.star", "one.star", "last.png")])
    inner = ["two.npy[0]", "two.npy[4]", "two.npy[2]", "one.npy[3]", "one.npy[1]"]
    assert found.names == ["first.png", *inner, "last.png"]
    np.testing.assert_array_equal(found.images[1:-1], [*stacks["two"][[0, 4, 2]], *stacks["one"][[3, 1]]])


def test_at_least_one_image_must_be_asked_for(tmp_path):
    with pytest.raises(ValueError, match="min_images must be at least 1, got 0"):
        read_folder(tmp_path, min_images=0)


def a_list(folder, images):
    a_folder(folder, images[::-1])
    return sorted(folder.iterdir(), reverse=True)


def a_folder(folder, images):
    for k, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{k:02d}.png")
    return folder


def a_star_file(folder, images):
    np.save(folder / "stack.npy", images[::-1])
    rows = "".join(f"{k:06}@stack.npy\n" for k in range(len(images), 0, -1))
    (folder / "all.star").write_text(f"data_\nloop_\n_rlnImageName #1\n{rows}")
    return folder / "all.star"


def in_a_file(write, name, key=""):
    """A way that writes all images to one file."""

    def way(folder, images):
        write(folder / name, images)
        return f"{folder / name}{key}"

    return way


WAYS = {
    "folder": a_folder,
    "list": a_list,
    "star": a_star_file,
    "npy": in_a_file(by_numpy, "a.npy"),
    "npz": in_a_file(lambda path, images: np.savez(path, x=images, y=np.arange(len(images))), "a.npz"),
    "one-of-several": in_a_file(lambda path, images: np.savez(path, a=images[:2], b=images), "a.npz", "::b"),
    "pages": in_a_file(partial(by_pillow, form="TIFF", mode="frames"), "a.tif"),
    "zarr": in_a_file(partial(zarr, version=3), "a"),
    "hdf5": in_a_file(hdf5, "a.h5"),
}
OPTIONAL = {"zarr": [pytest.mark.extra("formats")], "hdf5": [pytest.mark.extra("formats")]}


@pytest.mark.parametrize(
    "way", [pytest.param(write, id=name, marks=OPTIONAL.get(name, ())) for name, write in WAYS.items()]
)
def test_images_are_the_same_wherever_they_lie(tmp_path, rng, way):
    images = noise(rng, 67, 32, 32, kind=np.uint8)
    source = way(tmp_path, images)
    found = read_folder(source)
    np.testing.assert_array_equal(found.images, unit(images))
    assert found.rejected == []
    stored = read_folder(source, pieces=True, memory="1MiB")
    assert isinstance(stored.images, ImagesInPieces)
    np.testing.assert_array_equal(stored.images[:], unit(images))
    assert stored.names == found.names
