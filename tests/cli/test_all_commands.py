"""What holds for every command: it never replaces a stranger's file, says what is wrong in one sentence, prints JSON.

``CALLS`` has a call of each command on small inputs; the laws below are tested on all of them.
"""

import json
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from kit.commands import contents, named, refused, started, unpose
from kit.networks import contrasted
from unpose.cli import COMMANDS
from unpose.nn import group_cnn
from unpose.train import save_network


class Call(NamedTuple):
    """A call that succeeds, on inputs in capitals; what OUT is; the keys of what it prints with ``--json``."""

    line: str
    out: str = ""  # "run" or "results": a folder of its own; "file"; "folder": files in a folder that may hold others
    keys: str = ""


RUN_KEYS = "agreement clusters confidence images no_cluster notes rejected remarks report run sizes stability"
AUDIT_KEYS = (
    "angles checkpoint comparison control culprits decides discrimination elements failures group headline "
    "holds images images_from input left_out measures modules n_calls notes output pairs passed remarks repairs "
    "shares_under_small_rotations tolerance verdict worst worst_images"
)
CALLS = {
    "cluster": Call("cluster PHOTOS -o OUT -k 3 --features pixels", "run", RUN_KEYS),
    "align": Call("align PHOTOS/hook -o OUT", "run", "constant distance images mean notes rejected run"),
    "plan": Call("plan PHOTOS", "", "advice plan seconds"),
    "dedupe": Call(
        "dedupe PHOTOS -o OUT --jobs 1", "results", "copies links page photographs read rejected second_names sets"
    ),
    "report": Call("report RUN -o OUT.html", "file", RUN_KEYS),
    "update": Call("update RUN NEW", "", "added foreign images rejected report run table"),
    "apply": Call("apply RUN NAMES", "", RUN_KEYS),
    "export": Call("export RUN --to csv -o OUT.csv", "file", "images out run to"),
    "export folders": Call("export RUN --to folders -o OUT", "results", "images out run to"),
    "train": Call("train PICTURES --quick -o OUT", "results"),
    "train unlabelled": Call("train PICTURES --unlabelled --epochs 1 -o OUT", "results"),
    "evaluate": Call(
        "evaluate NET ARRAY --split all -o OUT.png",
        "file",
        "accuracy by_class data degrees mean notes upright worst",
    ),
    "predict": Call("predict RUN NEW -o OUT.csv", "file", "images not_read"),
    "predict classes": Call("predict --model NET NEW -o OUT.csv", "file", "images not_read notes"),
    "models": Call("models", "", "card classes light name network parameters path sha256 size"),
    "adapt": Call(
        "adapt NET --images PHOTOS --group c4 --steps 0 -o OUT",
        "results",
        "files group images input measured_images measures model recommended trials why worst_change_of_the_model",
    ),
    "audit": Call(
        "audit NET --images PHOTOS --count 2 --no-repair -o OUT",
        "results",
        f"{AUDIT_KEYS} answers answers_control classes",
    ),
    "audit plot": Call("audit NET --count 2 -o OUT.png", "file", AUDIT_KEYS),
    "discover": Call(
        "discover STACK --try mirror --no-labels -o OUT.html",
        "file",
        "findings finite_group group images labelled max_angle max_scale not_read options source",
    ),
    "register": Call(
        "register CLOUD CLOUD -o OUT.xyz",
        "file",
        "alternatives b_from_a degrees margin mirrored notes overlap reliable residual",
    ),
    "reproduce": Call("reproduce figure2 -o OUT", "folder"),
}
WITHOUT_CALL = {"demo", "docs"}
"""One takes no input and has tests of its own; the other opens a browser."""
INPUTS = ("PHOTOS", "PICTURES", "NEW", "RUN", "NAMES", "STACK", "CLOUD", "ARRAY", "NET")
READERS = {name: keys for name, call in CALLS.items() if (keys := [key for key in INPUTS if key in call.line])}
"""Command -> the inputs that it takes."""
WRITERS = [name for name, call in CALLS.items() if call.out]
OWNERS = [name for name, call in CALLS.items() if call.out in ("run", "results")]

STRANGERS = [
    {"mine.txt": "dear"},
    {"report.html": "dear", "audit.json": "{}", "card.json": "{}", "state.json": "{}"},
    {"labels.csv": "dear", "log.txt": "dear", ".draft.tmp": "dear", "means/cluster-000.png": "dear"},
    *(
        {"config.toml": text, "model.safetensors": "dear", "log.csv": "dear"}
        for text in ("clusters = 3\n", "[made]\nby = 'me'\n", "clusters = [", 'name = "a recipe"\n', "epoch = 3\n")
    ),
]
"""Folders of files that look like results, and that no command wrote."""


@pytest.fixture(scope="module")
def inputs(shapes, new_shapes, tmp_path_factory):
    """What the words in capitals stand for."""
    place = tmp_path_factory.mktemp("inputs")
    assert unpose("cluster", new_shapes, "-o", place / "run", "-k", 3, "--features", "pixels").status == 0
    rng = np.random.default_rng(0)
    (place / "names.csv").write_text("path,name\nhook/000.png,a hook\n")
    np.save(place / "stack.npy", rng.random((60, 12, 12), dtype=np.float32))
    np.save(place / "cloud.npy", rng.normal(size=(60, 3)) ** 3)
    save_network(
        place / "net.safetensors", contrasted(group_cnn("c4", 1, 4, 13, width=4, stages=(1, 1))), classes=list("0123")
    )
    np.savez(place / "array.npz", x=rng.random((12, 13, 13), dtype=np.float32), y=np.arange(12) % 4)
    return {
        "PHOTOS": new_shapes, "PICTURES": shapes, "NEW": new_shapes / "frame", "RUN": place / "run",
        "NAMES": place / "names.csv", "STACK": place / "stack.npy", "CLOUD": place / "cloud.npy",
        "ARRAY": place / "array.npz", "NET": place / "net.safetensors",
    }  # fmt: skip


@pytest.fixture
def words(inputs, tmp_path):
    """The words of a call; the run in it is a copy, which may change, as far from its images as the run itself."""
    copy_of_run = inputs["RUN"].with_name(tmp_path.name)

    def words(name, out=tmp_path / "out", **others):
        places = {**{key: str(value) for key, value in (inputs | others).items()}, "OUT": str(out)}
        if "RUN" in READERS.get(name, ()) and "RUN" not in others:
            places["RUN"] = str(copy_of_run)
            if not copy_of_run.exists():
                shutil.copytree(inputs["RUN"], copy_of_run)
        filled = []
        for word in CALLS[name].line.split():
            key = next((key for key in sorted(places, key=len, reverse=True) if word.startswith(key)), "")
            filled.append(places[key] + word[len(key) :] if key else word)
        return filled

    return words


def written(name, out):
    """The path that a call writes to."""
    last = CALLS[name].line.split()[-1]
    return out.with_name(out.name + last.removeprefix("OUT")) if last.startswith("OUT") else out


def options(name):
    """The names of the options of a command."""
    command, _, _ = named(CALLS[name].line.split())
    return {option for parameter in command.params for option in parameter.opts}


def test_every_command_has_a_call():
    assert {call.line.split()[0] for call in CALLS.values()} | WITHOUT_CALL == set(COMMANDS)


def test_a_wrong_option_is_refused_in_one_sentence():
    for name in COMMANDS:
        refused(unpose(name, "--nonsense"), "--nonsense")


@pytest.mark.parametrize("name", READERS)
def test_a_missing_input_is_refused_in_one_sentence_and_nothing_is_written(name, words, inputs, tmp_path):
    for key in READERS[name]:
        refused(unpose(*words(name, **{key: tmp_path / "nowhere"})), str(tmp_path / "nowhere"))
        assert not list(tmp_path.iterdir())


def told(text):
    """The keys of a JSON text, or of the first of a list. NaN and infinity are no JSON."""
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return set(found[0] if isinstance(found, list) else found)


def test_whoever_prints_json_has_its_keys_listed():
    assert {name for name in CALLS if "--json" in options(name)} == {name for name, call in CALLS.items() if call.keys}


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.keys and not call.out])
def test_json_has_the_keys_that_are_listed(name, words):
    done = unpose(*words(name), "--json")
    assert done.status == 0, done.output
    assert told(done.out) == set(CALLS[name].keys.split())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "train unlabelled")) for name in WRITERS]
)
def test_results_are_written_told_and_replaced_only_if_forced(name, words, tmp_path):
    """The same run serves these laws, and its JSON has the keys that are listed."""
    as_json = ["--json"] if CALLS[name].keys else []
    call = [*words(name, tmp_path / "deep" / "out"), *as_json]
    out = written(name, tmp_path / "deep" / "out")
    done = unpose(*call)
    assert done.status in (0, 1), done.output
    if as_json:  # a command that writes a table writes it as JSON
        assert told(done.out if done.out[:1] in ("{", "[") else out.read_text()) == set(CALLS[name].keys.split())
    before = contents(tmp_path / "deep", {"log.txt"})
    assert before
    again = unpose(*call)
    if "--force" not in options(name):
        assert again.status == done.status  # it continues its work: there is nothing left to do
        return
    is_run = CALLS[name].out == "run"
    refused(again, "holds a finished run" if is_run else "already", "--force")
    assert contents(tmp_path / "deep", {"log.txt"}) == before
    if is_run:
        resumed = unpose(*call, "--resume")
        assert resumed.status == 0, resumed.output
        assert "already finished" in resumed.words
        assert contents(tmp_path / "deep", {"log.txt"}) == before
    assert unpose(*call, "--force").status == done.status
    assert out.exists()
    if CALLS[name].out == "file":
        out.write_text("dear")
        refused(unpose(*call), "already exists", "--force")
        assert out.read_text() == "dear"


@pytest.mark.parametrize("name", OWNERS)
def test_a_folder_with_files_of_others_is_refused_also_if_forced(name, words, tmp_path):
    force = ["--force"] if "--force" in options(name) else []
    for number, files in enumerate(STRANGERS):
        out = tmp_path / f"mine{number}"
        for file, text in files.items():
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            (out / file).write_text(text)
        for more in ([], force):
            refused(unpose(*words(name, out), *more))
            assert contents(out) == {file: text.encode() for file, text in sorted(files.items())}
    (tmp_path / "file").write_text("dear")
    refused(unpose(*words(name, tmp_path / "file"), *force))
    assert (tmp_path / "file").read_text() == "dear"


@pytest.mark.parametrize("name", [name for name in OWNERS if CALLS[name].out != "run"])
def test_results_of_another_command_are_refused_also_if_forced(name, words, inputs, tmp_path):
    out = shutil.copytree(inputs["RUN"], tmp_path / "taken")
    before = contents(out)
    refused(unpose(*words(name, out), *(["--force"] if "--force" in options(name) else [])))
    assert contents(out) == before


@pytest.mark.parametrize("name", [name for name in OWNERS if "RUN" not in CALLS[name].line])
def test_results_and_images_never_contain_each_other(name, words, inputs, tmp_path):
    images = shutil.copytree(inputs[READERS[name][0]], tmp_path / "all" / "images")
    before = contents(tmp_path)
    for out in (images / "hook" / "results", tmp_path / "all"):
        refused(unpose(*words(name, out, **{READERS[name][0]: images})), "must not contain each other")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [name for name in OWNERS if "RUN" not in CALLS[name].line])
def test_two_processes_never_write_into_one_folder(name, words, tmp_path):
    import fcntl

    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for more in [], [option for option in ("--force",) if option in options(name)]:
            refused(unpose(*words(name), *more), "another unpose")
    assert contents(tmp_path / "out", {".lock"}) == {}


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_said_in_one_sentence(name, words, tmp_path):
    (tmp_path / "file").write_text("dear")
    done = unpose(*words(name, tmp_path / "file" / "out"))
    assert done.status in (1, 2), done.output
    assert "Traceback" not in done.output
    assert (tmp_path / "file").read_text() == "dear"


# The command as it is, but Ctrl-C is pressed when it first opens a file of its input.
INTERRUPTED = """
import os, signal, sys
place, is_pressed = os.environ["INPUT"], False

def press(event, arguments):
    global is_pressed
    if event == "open" and not is_pressed and str(arguments[0]).startswith(place):
        is_pressed = True
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background tasks inherit that it is ignored
from unpose.cli import main
sys.addaudithook(press)
main()
"""


@pytest.mark.slow  # a process for each command
@pytest.mark.parametrize("name", READERS)
def test_ctrl_c_ends_with_130_and_leaves_nothing_half_done(name, words, inputs, tmp_path):
    call = words(name)
    place = inputs["RUN"].with_name(tmp_path.name) if "RUN" in READERS[name] else inputs[READERS[name][0]]
    before = contents(place) if place.is_dir() else None
    process = started(*call, program=["-c", INTERRUPTED], env={"INPUT": str(place)})
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "Stopped" in said
    assert "Traceback" not in said
    assert before is None or contents(place, {".lock"}) == before
    assert not written(name, tmp_path / "out").is_file()
