"""Run folders of a stranger: nothing outside of them is written, moved, removed or given away.

Every attack is made by code from a run of six small pictures: links where files or folders should be, names that lead
out, and paths of other people's files. A command may refuse the folder, in one sentence, or do its work without
touching anything else.
"""

import hashlib
import json
import os
import re
import shutil
import stat

import numpy as np
import pytest

from kit.commands import unpose, unpose_process
from unpose.cluster import InvariantClustering
from unpose.data import read_folder
from unpose.files import write_image
from unpose.runs import RunSettings, read_run, write_run

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links need rights on this system")


def pictures():
    hook = np.zeros((13, 13), np.float32)
    hook[2:11, 5:7] = hook[2:4, 5:11] = 1
    return [np.rot90(shape, turn) for shape in (hook, np.tri(13)) for turn in range(3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder ``images``, its ``run``, pictures that arrive ``later``, and ``names.csv`` for the run."""
    place = tmp_path_factory.mktemp("stranger")
    for k, picture in enumerate(pictures()):
        write_image(place / "images" / f"{k}.png", picture)
    write_image(place / "later" / "new.png", np.tri(13)[::-1])
    images = read_folder(place / "images")
    (place / "run").mkdir()
    model = InvariantClustering(2, features="pixels", n_jobs=1).fit(images.images)
    settings = RunSettings(clusters=2, size=13)
    write_run(place / "run", place / "images", images, model, settings, "unpose cluster").write_page()
    (place / "names.csv").write_text("path,name\n0.png,hook\n")
    return place


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run, beside a copy of its images, where it finds them."""
    shutil.copytree(made / "images", tmp_path / "images")
    return shutil.copytree(made / "run", tmp_path / "run")


@pytest.fixture
def victim(tmp_path):
    """A folder of the user outside of the run, as the attack must leave it."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("authorized_keys", "cluster-000.png", "report.html", "labels.csv"):
        (home / name).write_text(f"precious {name}")
    return home


def entries(folder):
    """Every entry below a folder: kind, content, mode and time."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            os.lstat(path).st_mode, os.lstat(path).st_mtime_ns if not path.is_dir() else 0,
        )
        for path in folder.rglob("*")
    }  # fmt: skip


COMMANDS = {
    "report": "report RUN",
    "predict": "predict RUN LATER -o OUT/p.csv",
    "apply": "apply RUN NAMES",
    "update": "update RUN LATER --device cpu",
    "csv": "export RUN --to csv -o OUT/a.csv",
    "folders": "export RUN --to folders -o OUT/folders",
    "train": "train RUN --quick -o OUT/net",
    "cluster": "cluster IMAGES -o RUN --clusters 2 --size 13 --features pixels --force",
}


def command(words, made, run, out):
    places = {"RUN": run, "LATER": made / "later", "NAMES": made / "names.csv", "IMAGES": made / "images"}
    filled = [str(places.get(word, word)).replace("OUT", str(out)) for word in words.split()]
    return unpose(*filled)


def link_means(run, home):
    shutil.rmtree(run / "means")
    (run / "means").symlink_to(home)


def complete_of_anything(run, home):
    """Complete new results, with a file that no run writes, to be moved through a link."""
    link_means(run, home)
    (run / ".complete" / "means").mkdir(parents=True)
    (run / ".complete" / "means" / "authorized_keys").write_text("a stranger's key")


def complete_of_means(run, home):
    link_means(run, home)
    (run / ".complete" / "means").mkdir(parents=True)
    (run / ".complete" / "means" / "cluster-000.png").write_text("a stranger's picture")


def complete_of_a_link(run, home):
    (run / ".complete").symlink_to(home)


def complete_with_links(run, home):
    (run / ".complete").mkdir()
    (run / ".complete" / "report.html").symlink_to(home / "report.html")
    (run / ".complete" / "means.txt").symlink_to(home / "authorized_keys")


def links_for(*names):
    def links(run, home):
        for name in names:
            (run / name).unlink(missing_ok=True)
            (run / name).symlink_to(home / "authorized_keys")

    return links


def links_of_folders(run, home):
    for name in (".pieces.1.tmp", ".new.1.tmp"):
        (run / name).symlink_to(home)


def link_for_pieces_of_an_unfinished_run(run, home):
    (home / "begun.json").write_text("{}")
    (run / ".pieces").symlink_to(home)


TREES = {
    "means": link_means, "complete-any": complete_of_anything, "complete-means": complete_of_means,
    "complete-link": complete_of_a_link, "complete-links": complete_with_links, "lock": links_for(".lock"),
    "report": links_for("report.html"), "log": links_for("log.txt"), "added": links_for("added.csv"),
    "labels": links_for("labels.csv", "clusters.json", "rejected.csv"), "folders": links_of_folders,
    "pieces": link_for_pieces_of_an_unfinished_run, "config": links_for("config.toml"),
    "model": links_for("model.json"), "images": links_for("images.json"),
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["report", "apply", "update", "cluster"])
def test_no_link_in_a_run_leads_out(made, run, victim, tmp_path, tree, name):
    TREES[tree](run, victim)
    before = entries(victim)
    done = command(COMMANDS[name], made, run, tmp_path / "out")
    assert entries(victim) == before
    assert done.status in (0, 2), done.output
    if done.status == 2:
        assert len(done.err.strip().splitlines()) <= 4
        assert "Traceback" not in done.output
        assert "rmtree" not in done.output


@pytest.mark.parametrize(("tree", "said"), [
    ("complete-any", r"'means/authorized_keys', which no run writes"), ("complete-means", "means is a symbolic link"),
    ("complete-link", r"\.complete is a symbolic link"), ("complete-links", "is a symbolic link"),
    ("lock", None), ("report", None), ("log", None), ("folders", None), ("config", r"config\.toml is a symbolic link"),
    ("model", r"model\.json is a symbolic link"), ("images", r"images\.json is a symbolic link"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["predict", "folders", "train"])
def test_who_only_reads_moves_nothing_through_a_link(made, run, victim, tmp_path, tree, said, name):
    TREES[tree](run, victim)
    before, given = entries(victim), entries(run)
    done = command(COMMANDS[name], made, run, tmp_path / "out")
    assert entries(victim) == before
    if said is None:
        assert done.status == 0 or name == "train", done.output  # the run has no named groups to train on
    else:
        assert done.status == 2
        assert re.search(said, done.err)
    assert entries(run) == given


def test_complete_results_of_a_stopped_update_are_moved(made, run, tmp_path):
    """What the attacks imitate still works: a folder of new results that only needs to be moved into place."""
    new = run / ".complete"
    new.mkdir()
    shutil.move(run / "means", new / "means")
    for name in ("images.json", "report.html"):
        shutil.move(run / name, new / name)
    before = entries(made / "run")
    assert command(COMMANDS["csv"], made, run, tmp_path / "out").status == 0
    after = entries(run)
    assert {name: entry[:2] for name, entry in after.items()} == {name: entry[:2] for name, entry in before.items()}


@pytest.mark.slow
def test_a_run_that_cannot_be_written_is_read(made, run, tmp_path):
    everything = [run, *run.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = entries(run)
    as_nobody = {"user": 65534} if os.getuid() == 0 else {}
    tmp_path.chmod(0o777)
    reachable = all(os.stat(parent).st_mode & stat.S_IXOTH for parent in run.parents)
    who = as_nobody if reachable else {}
    done = unpose_process("export", run, "--to", "csv", "-o", tmp_path / "a.csv", **who)
    run.chmod(0o755)
    (run / "means").chmod(0o755)
    assert done.status == 0, done.err
    assert {name: entry[0] for name, entry in entries(run).items()} == {name: e[0] for name, e in before.items()}


def with_path(run, i, path):
    about = json.loads((run / "images.json").read_text())
    about["paths"][i] = str(path)
    (run / "images.json").write_text(json.dumps(about))


def bytes_below(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_path_in_a_run_is_no_reason_to_copy_a_file(made, run, victim, tmp_path):
    with_path(run, 2, victim / "authorized_keys")
    done = command(COMMANDS["folders"], made, run, tmp_path / "out")
    assert done.status == 2
    assert "1 image of" in done.err
    assert f"{victim / 'authorized_keys'} first, and nothing was copied" in done.words
    assert not (tmp_path / "out").exists()
    # Also where the user believes it, only the image is copied that the run was made from.
    done = command(f"{COMMANDS['folders']} --source {victim}", made, run, tmp_path / "out")
    assert done.status == 0, done.output
    assert b"precious" not in bytes_below(tmp_path / "out")
    assert len([path for path in (tmp_path / "out").rglob("*.png")]) == 6


def test_images_behind_links_are_copied_if_the_user_names_their_folder(made, tmp_path):
    """A folder of links, as of git-annex: the images lie outside, and the run was made from them."""
    (tmp_path / "store").mkdir()
    (tmp_path / "photos").mkdir()
    for k in range(6):
        shutil.copy(made / "images" / f"{k}.png", tmp_path / "store")
        (tmp_path / "photos" / f"{k}.png").symlink_to(tmp_path / "store" / f"{k}.png")
    images = read_folder(tmp_path / "photos")
    (tmp_path / "run").mkdir()
    model = InvariantClustering.load(made / "run")
    write_run(tmp_path / "run", tmp_path / "photos", images, model, RunSettings(clusters=2, size=13), "unpose cluster")
    done = command(COMMANDS["folders"], made, tmp_path / "run", tmp_path / "out")
    assert (done.status, "6 images of" in done.err) == (2, True), done.output
    done = command(f"{COMMANDS['folders']} --source {tmp_path / 'store'}", made, tmp_path / "run", tmp_path / "out")
    assert done.status == 0, done.output
    assert len([path for path in (tmp_path / "out").rglob("*.png") if not path.is_symlink()]) == 6


@pytest.mark.parametrize("change", ["pixels", "one more", "another folder"])
def test_images_leave_only_with_the_pixels_of_the_run(made, run, tmp_path, change):
    """The run says where its images are; what is there now may be what somebody wants to have."""
    place = shutil.copytree(made / "images", tmp_path / "private")
    if change == "pixels":
        write_image(place / "3.png", np.tri(13) / 2)
    elif change == "one more":
        write_image(place / "secret.png", np.tri(13))
    about = json.loads((run / "images.json").read_text())
    about["input"] = str(place)
    about["paths"] = [str(place / f"{k}.png") for k in range(6)]
    (run / "images.json").write_text(json.dumps(about))
    done = command(COMMANDS["folders"], made, run, tmp_path / "out")
    if change == "another folder":
        assert done.status == 0, done.output
    else:
        assert (done.status, "have changed since the run" in done.err) == (2, True), done.output
        assert not (tmp_path / "out").exists()


def test_an_export_of_moved_images_works_after_an_update(made, run, tmp_path):
    assert command(COMMANDS["update"], made, run, tmp_path / "out").status == 0
    place = shutil.copytree(made / "images", tmp_path / "moved")
    done = command(f"{COMMANDS['folders']} --images {place}", made, run, tmp_path / "out")
    assert done.status == 0, done.output
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "out").rglob("*.png")}
    copied = [*(made / "images").iterdir(), *(made / "later").iterdir()]
    assert digests == {hashlib.sha256(path.read_bytes()).hexdigest() for path in copied}


def test_an_export_through_the_users_link_replaces_only_an_export(made, run, victim, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    assert command(COMMANDS["folders"].replace("OUT", str(tmp_path / "real")), made, run, out).status == 0
    (out / "folders").symlink_to(tmp_path / "real" / "folders")
    done = command(f"{COMMANDS['folders']} --aligned --force", made, run, out)
    assert done.status == 0, done.output
    assert (out / "folders").is_symlink()
    assert len(list((tmp_path / "real" / "folders").rglob("*.png"))) == 6
    assert sorted(os.listdir(tmp_path / "real")) == ["folders"]
    # Links that were put into an earlier export are not what an export wrote.
    (tmp_path / "real" / "folders" / "more").symlink_to(victim)
    before = entries(victim)
    done = command(f"{COMMANDS['folders']} --force", made, run, out)
    assert (done.status, "which no export wrote" in done.err) == (2, True), done.output
    assert entries(victim) == before


CRAFTED = {
    "names": lambda about: about | {"names": [["a"]] * 6},
    "paths": lambda about: about | {"paths": [7] * 6},
    "frames": lambda about: about | {"frames": ["x"] * 6},
    "frames-huge": lambda about: about | {"frames": [10**400] * 6},
    "rejected": lambda about: about | {"rejected": [[1, {}]]},
    "input": lambda about: about | {"input": ["/"]},
    "added": lambda about: about | {"added": [{"input": 7}]},
    "counts": lambda about: about | {"added": [{"input": "", "images": 9, "fingerprint": "", "p_values": [0] * 9}]},
    "agreement": lambda about: about | {"agreement": {"x": "y"}},
    "notes": lambda about: about | {"notes": [{}]},
    "shape": lambda about: about | {"shape": [13, "13"]},
    "source_shape": lambda about: about | {"source_shape": [13, 0]},
    "class_names": lambda about: about | {"class_names": "abc"},
    "classes": lambda about: about | {"classes": [3] * 6},
    "settled": lambda about: about | {"settled": "yes---"},
    "rejected_names": lambda about: about | {"rejected_names": {"0": [7]}},
    "rejected_names-keys": lambda about: about | {"rejected_names": {"../x": ["a"]}},
    "cluster_names": lambda about: about | {"cluster_names": ["../../../etc", "b"]},
    "settings": lambda about: about | {"settings": {"seed": 0, "x": {}}},
    "list": lambda about: [about],
    "number": lambda about: 7,
    "nothing": lambda about: None,
}  # fmt: skip


@pytest.mark.parametrize("kind", CRAFTED)
def test_wrong_facts_in_a_run_are_refused_in_one_sentence(made, run, tmp_path, kind):
    path = run / "images.json"
    path.write_text(json.dumps(CRAFTED[kind](json.loads(path.read_text()))))
    for name in ("report", "folders"):
        done = command(COMMANDS[name], made, run, tmp_path / "out")
        if kind == "cluster_names":  # a name that leads out is a word for the page, and no path
            assert done.status == 0, done.output
            assert all(path.is_relative_to(tmp_path) for path in (tmp_path / "out").rglob("*"))
        else:
            assert (done.status, "Error" in done.err) == (2, True), done.output
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize(
    "name", ["model.json", "images.json", "config.toml", "model.safetensors", "pictures.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing", "text"])
def test_what_is_no_file_of_a_run_is_refused_and_nothing_waits(made, run, tmp_path, name, kind):
    (run / name).unlink()
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "folder":
        (run / name).mkdir()
    elif kind == "text":
        (run / name).write_text('{"a": "' + "[" * 5000)
    done = command(COMMANDS["csv"], made, run, tmp_path / "out")
    assert (done.status, "Error" in done.err) == (2, True), done.output
    assert str(run) in done.err


def test_a_begun_run_of_a_stranger_is_refused_or_begun_again(made, tmp_path):
    for text in ("[]", "7", "{", '{"settings": 3}', '{"settings": {"clusters": {}}}'):
        run = tmp_path / "begun"
        (run / ".pieces").mkdir(parents=True)
        (run / ".pieces" / "begun.json").write_text(text)
        refused = command(COMMANDS["cluster"].replace(" --force", ""), made, run, tmp_path)
        assert refused.status == 2, refused.output
        shutil.rmtree(run)


def test_the_users_own_link_to_a_run_is_followed(made, run, tmp_path):
    (tmp_path / "mine").symlink_to(run)
    assert command(COMMANDS["update"], made, tmp_path / "mine", tmp_path).status == 0
    assert len(read_run(run).names) == 7
    assert (tmp_path / "mine").is_symlink()


RESULTS = {
    "dedupe": ("state.json", '{"searched": []}', "dedupe IMAGES -o RUN"),
    "train": ("config.toml", None, "train IMAGES --quick -o RUN --force"),
    "unlabelled": ("config.toml", None, "train IMAGES --unlabelled --epochs 1 -o RUN --force"),
    "adapt": ("card.json", '{"recommended": ""}', "adapt mnist-c8 --images IMAGES --group c4 -o RUN --force"),
    "audit": ("audit.json", '{"headline": ""}', "audit mnist-c8 --images IMAGES -o RUN --force"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_no_link_in_other_results_leads_out(made, victim, tmp_path, name):
    """A folder that looks like earlier results of a command, with a link, is refused before anything is written."""
    mark, text, words = RESULTS[name]
    for where in ("report.html", "deep/.calls"):
        out = tmp_path / where.partition("/")[0]
        for file in (out / mark, out / where):
            file.parent.mkdir(parents=True, exist_ok=True)
        (out / mark).write_text(text or unpose("train", "--recipe", "digits", "--print").out)
        (out / where).symlink_to(victim / "authorized_keys")
        before = entries(victim), entries(out)
        done = command(words, made, out, tmp_path)
        assert done.status == 2, done.output
        assert f"{out / where} is a symbolic link" in done.words, done.err
        assert (entries(victim), entries(out)) == before


def test_a_run_tells_no_place_of_its_authors_disk_and_is_found_beside_its_images(made, tmp_path):
    told = json.loads((made / "run" / "images.json").read_text())
    assert (told["input"], told["paths"]) == (os.path.join("..", "images"), [f"{k}.png" for k in range(6)])
    shutil.copytree(made, tmp_path / "elsewhere")
    assert command(COMMANDS["update"], made, tmp_path / "elsewhere" / "run", tmp_path).status == 0
    run = read_run(tmp_path / "elsewhere" / "run")
    assert [*run.paths[:6], run.source] == [*(tmp_path / "elsewhere" / "images" / f"{k}.png" for k in range(6)),
                                            tmp_path / "elsewhere" / "images"]  # fmt: skip
    assert run.about["added"][0]["input"] == str(made / "later")
    assert str(made) not in (run.path / "images.json").read_text().replace(os.path.relpath(made, run.path), "")


def test_a_run_that_was_moved_away_from_its_images_says_so(made, tmp_path):
    shutil.copytree(made / "run", tmp_path / "alone" / "run")
    done = command(COMMANDS["train"], made, tmp_path / "alone" / "run", tmp_path / "out")
    assert done.status == 2, done.output
    assert f"not at {tmp_path / 'alone' / 'images'}; move a run and its images together" in done.words


@pytest.mark.parametrize("name", ["n_clusters", "n_features_in", "n_fitted"])
def test_infinite_numbers_of_a_model_are_refused(made, run, tmp_path, name):
    about = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(about | {name: float("inf")}))
    done = command(COMMANDS["predict"], made, run, tmp_path)
    assert done.status == 2, done.output
