"""The folder of a search for duplicates: resumed and grown searches, odd files, and moves that can be undone."""

import json
import os

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scipy import ndimage

from unpose.cli import main
from unpose.runs import RunError
from unpose.runs.duplicates import DuplicateSearch
from unpose.runs.folder import folder_lock
from unpose.runs.moves import move_files, undo_moves


def picture(seed, shape=(97, 131)):
    random = np.random.default_rng(seed)
    image = sum(ndimage.gaussian_filter(random.standard_normal(shape), sigma) * sigma for sigma in (2, 5))
    return Image.fromarray(((image - image.min()) / np.ptp(image) * 255).astype(np.uint8))


@pytest.fixture
def photos(tmp_path):
    """Three pictures, a turned copy of the first and a byte copy of the second."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed, name in enumerate("abc"):
        picture(seed).save(folder / f"{name}.png")
    picture(0).rotate(31, Image.Resampling.BICUBIC, expand=True).save(folder / "turned.jpg", quality=90)
    (folder / "copy of b.png").write_bytes((folder / "b.png").read_bytes())
    return folder


def names(found):
    return [{each.keep.name, *(other.name for other in each.others)} for each in found.sets]


def test_a_grown_folder_is_read_and_compared_only_where_it_is_new(photos, tmp_path):
    stages = []
    search = DuplicateSearch(tmp_path / "out", jobs=1)
    first = search.run([photos], progress=lambda stage, *_: stages.append(stage))
    assert "comparing" in stages
    assert names(first) == [{"a.png", "turned.jpg"}, {"b.png", "copy of b.png"}]
    assert (first.photographs, first.read) == (5, 5)
    assert first.sets[0].keep.name == "a.png"  # resampling has made the copy less sharp
    stages.clear()
    again = search.run([photos], progress=lambda stage, *_: stages.append(stage))
    assert (again.read, "comparing" in stages) == (0, False)
    assert names(again) == names(first)
    picture(2).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photos / "new.png")
    grown = search.run([photos])
    assert grown.read == 1
    assert {"c.png", "new.png"} in names(grown)
    (photos / "turned.jpg").unlink()
    assert {"a.png", "turned.jpg"} not in names(search.run([photos]))


def test_an_interrupted_search_keeps_what_it_read(photos, tmp_path):
    def stop(stage, done, total):
        if stage == "reading" and done >= 4:
            raise KeyboardInterrupt

    search = DuplicateSearch(tmp_path / "out", jobs=1, block=2)
    with pytest.raises(KeyboardInterrupt):
        search.run([photos], progress=stop)
    (next((tmp_path / "out" / "index").glob("*.npz"))).write_bytes(b"damaged")
    found = search.run([photos])
    assert found.read == 3  # the block that was damaged, and the last picture
    assert {"a.png", "turned.jpg"} in names(found)


def test_odd_files_are_named_and_left_alone(photos, tmp_path):
    (photos / "cut.jpg").write_bytes((photos / "turned.jpg").read_bytes()[:300])
    (photos / "notes.txt").write_text("not an image")
    os.symlink(photos / "c.png", photos / "link.png")
    os.link(photos / "c.png", photos / "second name.png")
    frames = [picture(seed, (31, 41)) for seed in (7, 8)]
    for name in ("one.gif", "two.gif"):  # two animations with the same bytes
        frames[0].save(photos / name, save_all=True, append_images=frames[1:])
    before = {file.name: file.read_bytes() for file in photos.iterdir()}
    found = DuplicateSearch(tmp_path / "out", jobs=1).run([photos])
    assert [name for name, _ in found.rejected] == ["cut.jpg"]
    assert found.links == ["link.png"]
    assert found.names == [("second name.png", "c.png")]
    assert {"one.gif", "two.gif"} in names(found)
    assert not any("c.png" in each for each in names(found))
    assert {file.name: file.read_bytes() for file in photos.iterdir()} == before


def test_a_folder_of_bad_files_has_no_duplicates(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(b"not a picture " + name.encode())
    found = DuplicateSearch(tmp_path / "out", jobs=1).run([folder])
    assert ([name for name, _ in found.rejected], found.sets) == (["a.jpg", "b.jpg"], [])


def test_exif_orientation_is_respected(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(4).save(folder / "lying.jpg", exif=exif, quality=95)
    picture(4).save(folder / "upright.jpg", quality=95)
    (each,) = DuplicateSearch(tmp_path / "out", jobs=1).run([folder]).sets
    assert {(photo.height, photo.width) for photo in (each.keep, *each.others)} == {(97, 131), (131, 97)}
    assert abs(each.relations[0].pose[0, 0]) < 0.01  # a quarter turn between them


def test_the_command_writes_tables_and_a_page_and_moves_and_undoes(photos, tmp_path):
    os.rename(photos / "turned.jpg", photos / "<turned>.jpg")
    out, spare = tmp_path / "found", photos / "spare"
    runner = CliRunner()
    result = runner.invoke(main, ["dedupe", str(photos), "-o", str(out), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "2 sets of duplicates" in result.output
    page = (out / "report.html").read_text()
    assert "&lt;turned&gt;.jpg" in page
    assert "<turned>" not in page
    rows = (out / "duplicates.csv").read_text().splitlines()
    assert len(rows) == 5
    assert [len(each["others"]) for each in json.loads((out / "duplicates.json").read_text())] == [1, 1]
    written = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert "5 photographs were read in this run" in result.output
    runner.invoke(main, ["dedupe", str(photos), "-o", str(tmp_path / "by two"), "--jobs", "2"])
    for name in ("duplicates.csv", "duplicates.json"):  # the same for any number of jobs
        assert (tmp_path / "by two" / name).read_bytes() == written[name]
    result = runner.invoke(main, ["dedupe", str(photos), "-o", str(out)])  # as after a kill, all is known already
    assert "0 photographs were read in this run" in result.output
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == written
    before = {file.name: file.read_bytes() for file in photos.iterdir()}
    command = ["dedupe", str(photos), "-o", str(out), "--move-to", str(spare), "--json"]
    moved = json.loads(runner.invoke(main, command).stdout)
    assert (moved["moved"], moved["read"]) == (2, 0)
    assert len(list(spare.iterdir())) == 2
    again = runner.invoke(main, command[:-1]).stdout  # the folder of moved files is not searched
    assert "No duplicates were found." in again
    assert "0 files moved" in again
    assert "moves them back" not in again
    with folder_lock(out):
        assert "another unpose" in runner.invoke(main, [*command, "--undo"]).output
    undone = json.loads(runner.invoke(main, [*command, "--undo"]).stdout)
    assert undone == {"restored": 2, "failed": []}
    assert {file.name: file.read_bytes() for file in photos.iterdir() if file.is_file()} == before


@pytest.mark.parametrize("words", [[], ["missing/"], ["--undo", "photos"], ["--undo", "-o", "nowhere"]])
def test_wrong_calls_say_what_to_do(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["dedupe", *words])
    assert result.exit_code == 2
    assert "Error" in result.output


def test_moves_never_replace_a_file(tmp_path):
    for name in ("a.txt", "b.txt", "there/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    journal = tmp_path / "journal.jsonl"
    there = tmp_path / "there"
    missing = tmp_path / "missing.txt"
    failed = move_files(
        [(tmp_path / "a.txt", there / "a.txt"), (missing, there / "m.txt"), (tmp_path / "b.txt", there / "b.txt")],
        journal,
    )
    assert [path for path, _ in failed] == [missing]
    assert (there / "a.txt").read_text() == "there/a.txt"
    assert (there / "a (2).txt").read_text() == "a.txt"
    (tmp_path / "b.txt").write_text("somebody else's")
    with journal.open("a") as stream:
        stream.write('{"from": "cut sh')
    restored, failed = undo_moves(journal, [tmp_path], there)
    assert restored == [tmp_path / "a.txt"]
    assert [path for path, _ in failed] == [tmp_path / "b.txt"]
    assert (tmp_path / "b.txt").read_text() == "somebody else's"
    assert (there / "b.txt").read_text() == "b.txt"


def _moved(tmp_path):
    """Two files moved from photos/ to spare/, a victim's home beside them, and the journal as lines."""
    for name in ("photos/deep/a.png", "photos/b.png", "home/secret"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    photos, spare, journal = tmp_path / "photos", tmp_path / "spare", tmp_path / "journal.jsonl"
    assert (
        move_files([(photos / "deep/a.png", spare / "deep/a.png"), (photos / "b.png", spare / "b.png")], journal) == []
    )
    return photos, spare, journal, [json.loads(line) for line in journal.read_text().splitlines()]


@pytest.mark.parametrize(
    "attack",
    [
        {"from": "{home}/planted"}, {"from": "{photos}/../home/planted"}, {"from": "{photos}/link/planted"},
        {"from": "{photos}"}, {"from": "planted"}, {"from": "{photos}/a\0b"}, {"to": "{home}/secret"},
        {"to": "{spare}/../home/secret"}, {"to": "{spare}/link/secret"}, {"to": "{spare}/linked"},
        {"to": "{spare}/pipe"}, {"to": "{spare}"}, {"sha256": "0" * 64}, {"sha256": None}, {"to": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_journal_moves_only_what_its_own_run_moved(tmp_path, attack):
    photos, spare, journal, lines = _moved(tmp_path)
    home = tmp_path / "home"
    (photos / "link").symlink_to(home)
    (spare / "link").symlink_to(home)
    (spare / "linked").symlink_to(home / "secret")
    os.mkfifo(spare / "pipe")
    places = {"home": home, "photos": photos, "spare": spare}
    lines[0] |= {key: text.format(**places) if isinstance(text, str) else text for key, text in attack.items()}
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="Nothing was moved back"):
        undo_moves(journal, [photos], spare)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_moves_are_undone_through_links_that_the_user_names(tmp_path):
    photos, spare, journal, _ = _moved(tmp_path)
    (tmp_path / "other name").symlink_to(photos)
    (photos / "deep").rmdir()
    assert undo_moves(journal, [tmp_path / "home", tmp_path / "other name"], spare)[1] == []
    assert (photos / "deep/a.png").read_text() == "photos/deep/a.png"
    assert (photos / "b.png").read_text() == "photos/b.png"
    assert journal.read_text() == ""


@pytest.mark.parametrize("name", ["report.html", "state.json", "index", "journal.jsonl"])
def test_a_link_in_the_folder_of_results_is_not_followed(photos, tmp_path, name):
    out, home = tmp_path / "out", tmp_path / "home"
    DuplicateSearch(out).run([photos])
    home.mkdir()
    (home / "file").write_text("dear")
    if (out / name).exists():
        os.rename(out / name, tmp_path / "moved")
    (out / name).symlink_to(home if name == "index" else home / "file")
    words = ["dedupe", str(photos), "-o", str(out), "--move-to", str(tmp_path / "spare")]
    done = CliRunner().invoke(main, words)
    assert "is a symbolic link, which is not followed" in " ".join(done.output.split())
    assert [path.read_text() for path in home.iterdir()] == ["dear"]
