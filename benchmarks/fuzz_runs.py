"""Damaged run folders, settings, tables and journals: a command must answer, or refuse them in a sentence.

A small run of ``unpose cluster``, one of ``unpose dedupe`` and tables that a person writes are made once. In each case
one of their files is mutated: bytes as in ``fuzz_images.py``, or one value of a JSON or TOML file is replaced by a
hostile one. Then a command that reads the file runs on a copy of the folder. A case is *lost* if the command ends in an
error that it does not explain, or if a file outside of the copy is written, moved or deleted. Cases run in another
process, so that a crash of a decoder is noticed. `fuzz.py` is the
command.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import tomli_w
from click.testing import CliRunner
from PIL import Image

from fuzz_images import mutated
from unpose.cli import main as unpose
from unpose.data import posed

BATCH = 100
OUTCOMES = ("answered", "refused", "lost")
TARGETS = {
    "run/model.json": ("predict", "run", "new"),
    "run/model.safetensors": ("predict", "run", "new"),
    "run/images.json": ("export", "run", "--to", "folders", "-o", "out"),
    "run/clusters.json": ("report", "run"),
    "run/pictures.safetensors": ("report", "run"),
    "run/config.toml": ("update", "run", "new"),
    "edits.csv": ("apply", "run", "edits.csv"),
    "classes.csv": ("cluster", "pictures", "--labels", "classes.csv", "-o", "out"),
    "settings.toml": ("cluster", "pictures", "--config", "settings.toml", "-o", "out"),
    "recipe.toml": ("train", "--config", "recipe.toml", "--print"),
    "copies/journal.jsonl": ("dedupe", "pictures", "-o", "copies", "--move-to", "moved", "--undo"),
}
"""The mutated file, and the command that reads it."""

EXPENSIVE = ("classes.csv", "settings.toml")
"""A whole clustering each, where the file is accepted: a tenth as many cases."""

HOSTILE = [
    None, True, -1, 0, 2**63, 1e308, float("nan"), float("inf"), "", "../../outside/kept.txt", "/etc/passwd",
    "a" * 5000, "\x00", "\n", "$(touch marker)", "encoder.pt2", "os:system", [], {}, [[[]]], [-1] * 3,
]  # fmt: skip


def make(folder):
    """Write what the cases begin with."""
    things = np.zeros((2, 16, 16), np.float32)
    things[0, 3:13, 7:9] = things[1, 3:13, 4:6] = things[1, 11:13, 4:12] = 1
    for name, seed, copies in (("pictures", 0, 4), ("new", 1, 1)):
        (folder / name).mkdir()
        for number, image in enumerate(posed(things, copies=copies, max_shift=1.0, random_state=seed).images):
            Image.fromarray((255 * image.clip(0, 1)).astype(np.uint8)).save(folder / name / f"{number}.png")
    large = np.kron(np.random.default_rng(0).random((6, 6)), np.ones((16, 16)))
    Image.fromarray((255 * large).astype(np.uint8)).save(folder / "pictures" / "large.png")
    Image.fromarray(np.rot90(255 * large).astype(np.uint8)).save(folder / "pictures" / "large-turned.png")
    with contextlib.chdir(folder):
        for words in (
            ("dedupe", "pictures", "-o", "copies", "--move-to", "moved"),
            ("cluster", "pictures", "-k", "2", "--size", "16", "-o", "run"),
        ):
            done = CliRunner().invoke(unpose, words)
            if done.exit_code:
                raise RuntimeError(f"unpose {' '.join(words)} ended with {done.exit_code}: {done.output[-500:]}")
    (folder / "edits.csv").write_text("path,name\n0.png,bar\n5.png,corner\n")
    (folder / "classes.csv").write_text("path,class\n0.png,bar\n1.png,bar\n5.png,corner\n")
    (folder / "settings.toml").write_text((folder / "run" / "config.toml").read_text())
    (folder / "recipe.toml").write_text('epochs = 1\nseed = 3\n[network]\ngroup = "c4"\n[poses]\nmax_angle = 30.0\n')


def replaced(table, rng):
    """A copy of a table in which one value, at any depth, is a hostile one, or has gone."""
    if not table or not isinstance(table, dict | list):
        return HOSTILE[rng.integers(len(HOSTILE))]
    places = list(table) if isinstance(table, dict) else range(len(table))
    at = places[rng.integers(len(places))]
    copy = table.copy()
    if rng.random() < 0.1:
        del copy[at]
    else:
        copy[at] = replaced(table[at], rng) if rng.random() < 0.7 else HOSTILE[rng.integers(len(HOSTILE))]
    return copy


def mutate(path, others, rng):
    """Mutate a file in place: its bytes, or one of its values."""
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(replaced(json.loads(data), rng)))
    elif path.suffix == ".jsonl" and rng.random() < 0.7:
        lines = data.decode().splitlines()
        at = rng.integers(len(lines))
        lines[at] = json.dumps(replaced(json.loads(lines[at]), rng))
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".toml" and rng.random() < 0.7:
        with contextlib.suppress(TypeError, ValueError):  # TOML has no null; the file stays as it is
            path.write_text(tomli_w.dumps(replaced(tomllib.loads(data.decode()), rng)))
    else:
        path.write_bytes(mutated(data, others[rng.integers(len(others))].read_bytes(), rng))


def state(folder):
    """Path -> hash of its content or the target of a link, for all that lies below a folder."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).digest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def attempt(good, place, kind, seed, number):
    """Run one case in a copy of the folder, at the place where it was made; the outcome, and what the command said.

    The case of a negative number changes nothing.
    """
    here, outside = place / "here", place / "outside"
    shutil.rmtree(place)
    shutil.copytree(good, here)
    outside.mkdir()
    (outside / "kept.txt").write_text("as it was")
    if number >= 0:
        others = [path for path in sorted(good.rglob("*")) if path.is_file()]
        mutate(here / kind, others, np.random.default_rng([seed, number]))
    before, pictures = state(outside), {*state(here / "pictures").values(), *state(here / "moved").values()}
    with contextlib.chdir(here):
        done = CliRunner().invoke(unpose, TARGETS[kind])
    said = (done.output.strip().splitlines() or [""])[-1]
    after = {*state(here / "pictures").values(), *state(here / "moved").values()}
    if state(outside) != before or {path.name for path in place.iterdir()} != {"here", "outside"}:
        return "lost", "a file outside was touched"
    if not pictures <= after:
        return "lost", "a picture has gone"
    if list(here.rglob("marker")):
        return "lost", "code ran"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "lost", f"{type(done.exception).__name__}: {done.exception}"
    if done.exit_code == 0:
        return "answered", said
    return ("refused" if done.exit_code == 2 else "lost"), f"status {done.exit_code}: {said}"


def answer(folder, cases, seed):
    """In the child: run cases and print a line for each."""
    for number, kind in cases:
        print(json.dumps([number, kind, *attempt(folder / "good", folder / "case", kind, seed, number)]), flush=True)


def run(cases, seed, show=None):
    """Count the outcomes for each kind of file; what was said of those that are lost."""
    rng = np.random.default_rng(seed)
    chance = np.array([0.1 if kind in EXPENSIVE else 1.0 for kind in TARGETS])
    drawn = rng.choice(list(TARGETS), cases, p=chance / chance.sum())
    todo = [(-1, kind) for kind in TARGETS] + [(number, str(kind)) for number, kind in enumerate(drawn)]
    counts, lost = {kind: Counter(dict.fromkeys(OUTCOMES, 0)) for kind in TARGETS}, []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "case" / "here").mkdir(parents=True)
        make(Path(folder) / "case" / "here")
        shutil.copytree(Path(folder) / "case" / "here", Path(folder) / "good")
        while todo:
            batch, todo = todo[:BATCH], todo[BATCH:]
            command = [sys.executable, __file__, folder, str(seed)]
            child = subprocess.run(command, input=json.dumps(batch), capture_output=True, text=True, check=False)
            told = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
            if len(told) < len(batch):  # the next case killed the process; the others run in a new one
                number, kind = batch[len(told)]
                told.append([number, kind, "lost", f"the process ended: {child.stderr[-300:]}"])
                todo = batch[len(told) :] + todo
            for number, kind, outcome, said in told:
                if number < 0 and outcome != "answered":
                    raise RuntimeError(f"the command that reads {kind} does not run without a mutation: {said}")
                counts[kind][outcome] += number >= 0
                if outcome == "lost":
                    lost.append(f"{number} {kind}: {said}")
            if show is not None:
                show(max(cases - len(todo), 0), cases)
    return counts, lost


if __name__ == "__main__":  # the child of run
    answer(Path(sys.argv[1]), json.load(sys.stdin), int(sys.argv[2]))
