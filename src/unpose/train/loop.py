"""The training loop: steps, validation, checkpoints, and at the very end the test set, once."""

import copy
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from unpose.data import Dataset, InputError
from unpose.data.splits import marks, packed, unpacked
from unpose.files.atomic import write_text
from unpose.images.light import light_of
from unpose.nn import NETWORKS, GroupSelfAttention, LiftingSelfAttention, Network, count_parameters, refined
from unpose.train.batches import Shelf, make_shelf, order_of_epoch, seed_for, steps_in_epoch, training_batch
from unpose.train.checkpoint import load_network, read_notes, save_network
from unpose.train.measure import validate
from unpose.train.optimizers import learning_rate, make_optimizer, set_learning_rate
from unpose.train.pretrained import pretrained_file
from unpose.train.processes import Processes, share_batch_statistics
from unpose.train.recipe import Recipe, recipe_table, recipe_toml
from unpose.train.replay import Replayed
from unpose.train.state import COLUMNS, STATE_FILE, State, load_state, save_state
from unpose.train.step import learn

CONFIG_FILE, MODEL_FILE, LOG_FILE, RESULT_FILE = "config.toml", "model.safetensors", "log.csv", "result.json"
_CHECKPOINT_SECONDS = 300.0
_MOST_MARKS = 50_000
"""Images that a network's file lists at most: 400 kB, a tenth of the header that is read."""
_OFFSET = 2.0
"""Deviation of the constants in queries that begin with one."""
_LOOK_EVERY = 20
"""Steps between looks at the loss on a GPU, where every look waits for all work under way."""


class Stopped(Exception):
    """Raised by a watch to end a run between two steps; its state is saved before it is passed on."""


class Diverged(RuntimeError):
    """The loss is no number any more; the message says where and what is left."""


@dataclass(frozen=True)
class Moment:
    """Where a run stands, for those who watch it."""

    epoch: int  # from one
    epochs: int
    step: int  # steps done in all
    steps: int  # of the whole run
    loss: float  # mean of this epoch so far


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    network: Network  # the one that is kept, in evaluation mode
    history: list[dict[str, float]]
    best_epoch: int
    validation_accuracy: float
    test_accuracy: float


Watch = Callable[[Moment], None]
"""Called after steps; may raise :class:`Stopped`."""
Note = Callable[[list[dict[str, float]]], None]
"""Called by the first process after each epoch with the history so far."""
Step = Callable[[Tensor, Tensor, int], None]
"""Takes images, labels and the number of the step, and moves the weights."""


def build_network(recipe: Recipe, dataset: Dataset) -> Network:
    """The network of a recipe for a data set: weights drawn from its seed, or of the network that it begins with."""
    part = recipe.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(recipe.seed, "weights"))
        try:
            network = NETWORKS[part.kind](
                part.group, dataset.channels, len(dataset.classes), dataset.image_size, **part.options
            )
        except TypeError as error:
            raise ValueError(f"network.options do not fit a {part.kind}: {error}") from error
        for module in network.modules():
            if part.initialization == "he" and isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if part.initialization == "offsets" and isinstance(module, GroupSelfAttention | LiftingSelfAttention):
                # A large constant in the queries: scores differ from place to place before anything is learnt.
                nn.init.normal_(module.project.bias[: len(module.project.bias) // 3], std=_OFFSET)
    if part.begin is not None:
        network.load_state_dict(_begun(part.begin, network).state_dict())
    return network


def _begun(begin: str, like: Network) -> Network:
    """The network in this file or with this name, for the group of another that is otherwise the same."""
    found = load_network(_beginning(begin))
    names = found.description.keys() | like.description.keys()
    differing = [name for name in sorted(names) if found.description.get(name) != like.description.get(name)]
    if set(differing) - {"group"}:
        raise ValueError(f"network.begin: {begin} differs from the recipe's network in {', '.join(differing)}")
    return refined(found, like.group) if differing else found


def _beginning(begin: str) -> Path:
    try:
        return Path(begin) if Path(begin).is_file() else pretrained_file(begin)
    except ValueError as error:
        raise ValueError(f"network.begin: no file is called {begin!r}, nor is a model: {error}") from error


def train(
    dataset: Dataset,
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    force: bool = False,
    checkpoint_steps: int | None = None,
    watch: Watch | None = None,
    note: Note | None = None,
) -> Outcome:
    """Train the network of a recipe on a data set.

    Parameters
    ----------
    dataset : its training part is learnt, its validation part chooses the epoch unless the last is kept, its test part
        is used once, at the end
    folder : where the run is kept; nothing is written without one
        ``config.toml``, ``state.safetensors`` (to go on), ``model.safetensors`` (the network that is kept), ``log.csv``
        and, at the end, ``result.json``; the network's file lists marks of the training and validation images, so that
        they are known again, where they are at most 50,000
    processes : from :func:`unpose.train.joined_processes` under ``torchrun``; this one alone by default
    resume : go on from the folder's state, where there is one; the result is the same, bit for bit on one device and
        with the same number of threads, as that of a run that was never stopped
    force : take a folder that holds something already; the files of a run in it are removed
    checkpoint_steps : save the state after so many steps; by default after every epoch and every five minutes

    Raises
    ------
    Diverged
        Where the loss or a weight is no number; the last good state and the network kept so far stay in the folder.

    Notes
    -----
    On one GPU a step is recorded once, as a CUDA graph, and played back. A network that cannot be recorded is trained
    all the same, with a warning and more slowly. Training images stay on the GPU where they take little of its memory.
    """
    if checkpoint_steps is not None and checkpoint_steps < 1:
        raise ValueError(f"checkpoint_steps must be at least 1, got {checkpoint_steps}")
    processes = processes or Processes()
    device, folder = torch.device(device), None if folder is None else Path(folder)
    batch = recipe.batch_size * processes.count
    if len(dataset.train) < processes.count:
        raise InputError(f"{len(dataset.train)} training images are fewer than the {processes.count} processes")
    per_epoch = steps_in_epoch(len(dataset.train), batch)
    if folder is not None and processes.is_first:
        _claim(folder, resume, force)
    # Several processes launch one by one: their sums would have to be recorded in all of them or in none, and one that
    # cannot record would leave the others waiting.
    recorded = device.type == "cuda" and processes.count == 1
    with _reproducible(device):
        state = _fresh_state(recipe, dataset, device, recorded)
        identity = {"recipe": recipe_table(recipe), "data": _fingerprint(dataset), "processes": processes.count}
        if folder is not None and resume and (folder / STATE_FILE).exists():
            load_state(folder / STATE_FILE, state, identity)
        elif folder is not None and processes.is_first:
            write_text(folder / CONFIG_FILE, recipe_toml(recipe))
        share_batch_statistics(state.network, processes)
        # From here on tensors of the state are written to and never replaced: a recorded step knows their addresses.
        step: Step = partial(learn, state, recipe, processes, min(batch, len(dataset.train)))
        step = Replayed(step, state.changing, device) if recorded else step
        shelf = make_shelf(dataset.train, device)
        learnt = _learnt(dataset, recipe) if folder is not None and processes.is_first else {}
        run = _Run(
            recipe, dataset, folder, device, processes, identity, per_epoch, batch, checkpoint_steps, shelf, step,
            learnt,
        )  # fmt: skip
        while len(state.history) < recipe.epochs:
            run.epoch(state, watch, note)
    best = state.best_network()
    row = state.history[state.best_epoch - 1]
    _, tested = validate(best, dataset.test, processes, device)
    outcome = Outcome(best, state.history, state.best_epoch, row["validation_accuracy"], tested)
    if folder is not None and processes.is_first:
        write_text(folder / RESULT_FILE, json.dumps(_result(outcome, recipe, dataset), indent=2) + "\n")
    processes.wait()
    return outcome


@dataclass
class _Run:
    """What stays the same from step to step."""

    recipe: Recipe
    dataset: Dataset
    folder: Path | None
    device: torch.device
    processes: Processes
    identity: dict[str, Any]
    per_epoch: int
    batch: int
    checkpoint_steps: int | None
    shelf: Shelf
    learn: Step
    learnt: dict[str, str]  # the note that lists the images learnt from
    saved_at: float = 0.0  # seconds of the clock, when the state was last written

    def epoch(self, state: State, watch: Watch | None, note: Note | None) -> None:
        """The rest of the epoch that the state is in, its validation and its checkpoint."""
        recipe, epoch = self.recipe, len(state.history)
        order = order_of_epoch(len(self.dataset.train), recipe.seed, epoch)
        started, self.saved_at = time.monotonic(), time.monotonic()
        state.network.train()
        while state.step < (epoch + 1) * self.per_epoch:
            place = state.step % self.per_epoch
            self._step(state, order[place * self.batch : (place + 1) * self.batch])
            last = state.step == (epoch + 1) * self.per_epoch
            if self.device.type == "cpu" or last or state.step % _LOOK_EVERY == 0:
                mean = self._look(state, epoch)
                self._show(
                    watch, Moment(epoch + 1, recipe.epochs, state.step, recipe.epochs * self.per_epoch, mean), state
                )
            if not last and self._is_due(state):
                self._save(state, epoch)
        loss, right, seen = state.totals.tolist()
        # As it learns: on a GPU other kernels would have to be compiled first. The test at the end is in float32.
        mixed = recipe.is_mixed_on(self.device.type)
        validation_loss, validation_accuracy = validate(
            state.judged, self.dataset.validation, self.processes, self.device, mixed=mixed
        )
        if not math.isfinite(validation_loss):
            self._give_up(state, epoch, f"the loss on validation became {validation_loss}")
        rate = learning_rate(recipe.optimizer, state.step - 1, self.per_epoch, recipe.epochs)
        seconds = time.monotonic() - started
        row = (epoch + 1, rate, loss / seen, right / seen, validation_loss, validation_accuracy, round(seconds, 3))
        state.history.append(dict(zip(COLUMNS, row, strict=True)))
        state.totals.zero_()
        improved = state.keep(only_better=recipe.keep == "best")
        self._save(state, epoch, improved)
        if note is not None and self.processes.is_first:
            note(state.history)

    def _step(self, state: State, rows: Tensor) -> None:
        """One step of the optimizer; its loss is added to the state's totals."""
        recipe, step = self.recipe, state.step
        images, labels = training_batch(self.shelf, rows, recipe.poses, recipe.seed, step, self.processes)
        # Dropout draws from the process's generator: seeded for the step, it needs no memory of the steps before.
        torch.manual_seed(seed_for(recipe.seed, f"dropout {self.processes.rank}", step))
        set_learning_rate(state.optimizer, learning_rate(recipe.optimizer, step, self.per_epoch, recipe.epochs))
        self.learn(images, labels, step)
        state.step += 1

    def _show(self, watch: Watch | None, moment: Moment, state: State) -> None:
        if watch is not None:
            try:
                watch(moment)
            except Stopped:
                self._save(state, moment.epoch - 1)
                raise

    def _look(self, state: State, epoch: int) -> float:
        """The mean loss of the epoch so far, over all processes; an error where it is no number."""
        loss, _, seen = state.totals.tolist()
        if not math.isfinite(loss):
            self._give_up(state, epoch, f"the loss became {loss / seen}")
        return loss / seen

    def _is_due(self, state: State) -> bool:
        if self.folder is None:
            return False
        if self.checkpoint_steps is not None:
            return state.step % self.checkpoint_steps == 0
        return self.processes.is_first and time.monotonic() - self.saved_at > _CHECKPOINT_SECONDS

    def _save(self, state: State, epoch: int, improved: bool = False) -> None:
        if not state.is_finite():
            self._give_up(state, epoch, "weights became NaN or infinite")
        if self.folder is None or not self.processes.is_first:
            return
        if improved:
            # What `predict` compares its images with; a thousand tell, at even steps: classes may follow each other.
            light = asdict(light_of(self.dataset.train.images[:: -(-len(self.dataset.train) // 1000)]))
            notes = {"recipe": recipe_table(self.recipe), "data": self.dataset.name, "light": light} | state.history[-1]
            notes |= self.learnt
            save_network(self.folder / MODEL_FILE, state.best_network(), classes=self.dataset.classes, notes=notes)
        save_state(self.folder / STATE_FILE, state, self.identity)
        write_text(self.folder / LOG_FILE, _csv(state.history))
        self.saved_at = time.monotonic()

    def _give_up(self, state: State, epoch: int, what: str) -> NoReturn:
        rate = learning_rate(self.recipe.optimizer, state.step - 1, self.per_epoch, self.recipe.epochs)
        kept = "Nothing was written."
        if self.folder is not None:
            kept = (
                f"{self.folder} keeps the state of the last good checkpoint and the network kept so far."
                if (self.folder / STATE_FILE).exists()
                else "There was no good checkpoint yet."
            )
        raise Diverged(
            f"{what} in epoch {epoch + 1}, at step {state.step}, with a learning rate of {rate:.3g}. {kept} Going on "
            "would end the same way: start anew with a lower optimizer.learning_rate or a longer warm-up"
            + (", or without mixed_precision" if self.recipe.is_mixed_on(self.device.type) else "")
            + "."
        )


def _claim(folder: Path, resume: bool, force: bool) -> None:
    """Make the folder of a run, and lose nothing that is in it unless told to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    files = (STATE_FILE, CONFIG_FILE, MODEL_FILE, LOG_FILE, RESULT_FILE)
    if resume and (folder / RESULT_FILE).exists():
        raise ValueError(f"{folder} holds a finished run; its test set has been used, see {RESULT_FILE} there")
    if resume or force:
        for name in files:
            for left in folder.glob(f".{name}.*.tmp"):  # of a process that was killed while it wrote
                left.unlink()
    if resume and (folder / STATE_FILE).exists():
        return
    if force:
        for name in files:
            (folder / name).unlink(missing_ok=True)
    elif {path.name for path in folder.iterdir()} - ({CONFIG_FILE} if resume else set()):
        raise ValueError(f"{folder} is not empty and nothing is overwritten; give another folder, resume, or force")


def _fresh_state(recipe: Recipe, dataset: Dataset, device: torch.device, recorded: bool = False) -> State:
    network = build_network(recipe, dataset).to(device)
    average = copy.deepcopy(network) if recipe.average else None
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    return State(network, make_optimizer(network, recipe.optimizer, recorded=recorded), average, totals=totals)


def _fingerprint(dataset: Dataset) -> str:
    """A hash of what is learnt from: all labels and up to a thousand images, so that a changed set is noticed."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.train.images.shape, dataset.train.images.dtype)).encode())
    digest.update(dataset.train.labels.tobytes())
    digest.update(dataset.validation.labels.tobytes())
    for number in range(0, len(dataset.train), max(1, len(dataset.train) // 1000)):
        digest.update(dataset.train.images[number].tobytes())
    return digest.hexdigest()


def _learnt(dataset: Dataset, recipe: Recipe) -> dict[str, str]:
    """A note with the marks of all images that have a part in the network; none where they are too many or unknown."""
    if len(dataset.train) + len(dataset.validation) > _MOST_MARKS:
        return {}
    known = {*marks(dataset.train.images), *marks(dataset.validation.images)}
    if (begin := recipe.network.begin) is not None:
        before = read_notes(_beginning(begin)).get("learnt")
        if before is None:
            return {}  # a list of some would pass for one of all
        known |= unpacked(before, f"network.begin: {begin}")
    return {"learnt": packed(known)} if len(known) <= _MOST_MARKS else {}


@contextmanager
def _reproducible(device: torch.device) -> Iterator[None]:
    """Within it the same numbers give the same bits; the caller's generators and settings come back afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS at its first product
        torch.use_deterministic_algorithms(True, warn_only=True)
        # torch would fill every tensor that is about to be written: a launch each, against reads that come too early.
        memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def _csv(history: list[dict[str, float]]) -> str:
    rows = [",".join(COLUMNS), *(",".join(repr(row[name]) for name in COLUMNS) for row in history)]
    return "\n".join(rows) + "\n"


def _result(outcome: Outcome, recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    return {
        "title": recipe.title,
        "data": {"name": dataset.name, "source": dataset.source},
        "images": {
            "train": len(dataset.train),
            "validation": len(dataset.validation),
            "test": len(dataset.test),
        },
        "group": recipe.network.group,
        "began_with": recipe.network.begin,
        "parameters": count_parameters(outcome.network),
        "epochs": recipe.epochs,
        "chosen_epoch": outcome.best_epoch,
        "chosen_by": "validation accuracy" if recipe.keep == "best" else "the end of the schedule",
        "validation_accuracy": outcome.validation_accuracy,
        "test_accuracy": outcome.test_accuracy,
        "test_set": "used once, after the epoch was chosen",
    }
