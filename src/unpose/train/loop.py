"""The training loop: steps, validation, checkpoints, and a single evaluation on the test set at the end."""

import copy
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from unpose.data import Dataset, InputError
from unpose.data.splits import decode_fingerprints
from unpose.discover import AUTO, Discovery, discover_group
from unpose.files import write_text
from unpose.nn import (
    NETWORKS,
    GroupSelfAttention,
    GSANetConfig,
    LiftingSelfAttention,
    Network,
    count_parameters,
    create_network,
    with_larger_group,
)
from unpose.train.batches import ImageStore, make_image_store, seed_for
from unpose.train.by_class import ClassFigures, class_figures
from unpose.train.checkpoint import load_network, read_notes, save_network
from unpose.train.cuda_graph import GraphedFunction, capture
from unpose.train.limits import Capture, Limits
from unpose.train.objective import Objective
from unpose.train.optimizers import learning_rate, make_optimizer, set_learning_rate
from unpose.train.pretrained import pretrained_file
from unpose.train.processes import Processes, share_batch_statistics
from unpose.train.recipe import Recipe, RecipeError, read_recipe, recipe_table, recipe_toml
from unpose.train.records import hash_note, light_note
from unpose.train.state import STATE_FILE, State, load_state, save_state
from unpose.train.symmetry import LearnedSymmetry, SymmetryObjective, make_symmetry
from unpose.train.training_step import training_step

CONFIG_FILE, MODEL_FILE, LOG_FILE, RESULT_FILE = "config.toml", "model.safetensors", "log.csv", "result.json"
_QUERY_BIAS = 2.0
"""Standard deviation of the query biases with ``initialization = "offsets"``."""
_VECTOR = 256
"""Length of the vectors of an encoder that is a classifier without labels."""


class StoppedError(Exception):
    """Raised by a progress callback to stop a run between two steps; the state is saved before it propagates."""


class DivergedError(RuntimeError):
    """The loss or a weight became NaN or infinite; the message says when, and what is kept."""


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a run, as passed to a progress callback.

    Attributes
    ----------
    epoch, epochs : int
        The current epoch, from one, and the number of epochs.
    step, steps : int
        Steps done and steps of the whole run.
    loss : float
        Mean training loss of the current epoch so far.

    Examples
    --------
    >>> TrainingProgress(epoch=1, epochs=2, step=5, steps=20, loss=0.7).step
    5
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes
    ----------
    network : Network
        The network of the kept epoch, in evaluation mode.
    history : list of dict
        One row per epoch: learning rate, losses, accuracies, seconds.
    best_epoch : int
        The kept epoch, from one.
    validation_accuracy, test_accuracy : float
        Of the kept network.
    by_class : ClassFigures or None, default None
        What the kept network makes of the test images of each class.
    symmetry : LearnedSymmetry or None, default None
        What the last epoch knew about symmetries, if the recipe learns it.
    discovery : Discovery or None, default None
        What the training images say about their symmetries, if the group of the recipe is "auto".

    Examples
    --------
    >>> TrainingResult(None, [], 1, 0.9, 0.8).test_accuracy
    0.8
    """

    network: Network
    history: list[dict[str, float]]
    best_epoch: int
    validation_accuracy: float
    test_accuracy: float
    by_class: ClassFigures | None = None
    symmetry: LearnedSymmetry | None = None
    discovery: Discovery | None = None

    def _repr_html_(self) -> str:
        """Accuracies, the curve of validation and the figures of each class, for notebooks."""
        from unpose.report import curve_html, table_html

        curve = [row["validation_accuracy"] for row in self.history] or [self.validation_accuracy]
        columns: dict[str, list] = {
            "test accuracy": [self.test_accuracy],
            "validation accuracy": [self.validation_accuracy],
            "kept epoch": [f"{self.best_epoch} of {len(self.history)}"],
            "validation, all epochs": [curve_html(curve)],
        }
        return table_html(columns) + ("" if self.by_class is None else self.by_class._repr_html_())


ProgressCallback = Callable[[TrainingProgress], None]
"""Called after steps; may raise :class:`StoppedError`."""
EpochCallback = Callable[[list[dict[str, float]]], None]
"""Called by the first process after each epoch, with the history so far."""
Step = Callable[[Tensor, Tensor, int], None]
"""Takes images, labels and the number of the step, and updates the weights."""


def build_network(recipe: Recipe, dataset: Dataset) -> Network:
    """Build the network of a recipe for a data set, with weights from its seed or from a starting network.

    Parameters
    ----------
    recipe : Recipe
    dataset : Dataset
        Gives channels, classes and image size.

    Returns
    -------
    Network

    Examples
    --------
    >>> from unpose.data import load
    >>> build_network(Recipe(), load("digits")).group
    c4
    """
    part, n_classes, options = recipe.network, len(dataset.classes), dict(recipe.network.options)
    is_encoder = recipe.unlabelled.loss != "none"
    if is_encoder and part.kind == "group_resnet":
        options["head"] = None  # gives the vector itself
    elif is_encoder:
        n_classes = _VECTOR
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(recipe.seed, "weights"))
        arguments = {
            "group": part.group, "in_channels": dataset.channels, "n_classes": n_classes,
            "image_size": dataset.image_size, **options,
        }  # fmt: skip
        try:
            signature(NETWORKS[part.kind]).bind(**arguments)
            if isinstance(config := options.get("config"), dict):
                signature(GSANetConfig).bind(**config)
        except TypeError as error:
            raise ValueError(f"network.options do not fit a {part.kind}: {error}") from error
        network = create_network(part.kind, **arguments)
        if not is_encoder and (head := network.description.get("head", "classes")) != "classes":
            raise ValueError(f"recipes train classifiers; network.options has head = {head!r}: use a loop of your own")
        for module in network.modules():
            if part.initialization == "he" and isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if part.initialization == "offsets" and isinstance(module, GroupSelfAttention | LiftingSelfAttention):
                # With a large query bias attention depends on position from the start.
                nn.init.normal_(module.project.bias[: len(module.project.bias) // 3], std=_QUERY_BIAS)
    if part.begin is not None:
        network.load_state_dict(_starting_network(part.begin, network).state_dict())
    return network


def _starting_network(begin: str, like: Network) -> Network:
    """Load the network to start from and enlarge its group to that of ``like``; all else must agree."""
    found = load_network(_starting_file(begin))
    names = found.description.keys() | like.description.keys()
    differing = [name for name in sorted(names) if found.description.get(name) != like.description.get(name)]
    if set(differing) - {"group"}:
        raise ValueError(f"network.begin: {begin} differs from the recipe's network in {', '.join(differing)}")
    return with_larger_group(found, like.group) if differing else found


def _starting_file(begin: str) -> Path:
    try:
        return Path(begin) if Path(begin).is_file() else pretrained_file(begin)
    except ValueError as error:
        raise ValueError(f"network.begin: {begin!r} is neither a file nor a model of this package: {error}") from error


def train(
    dataset: Dataset,
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    force: bool = False,
    discovery: Discovery | None = None,
    checkpoint_steps: int | None = None,
    progress: ProgressCallback | None = None,
    on_epoch: EpochCallback | None = None,
    limits: Limits | None = None,
) -> TrainingResult:
    """Train the network of a recipe on a data set.

    Parameters
    ----------
    dataset : Dataset
        The training part is learnt, the validation part chooses the epoch (unless ``recipe.keep`` is ``"last"``), and
        the test part is used once, at the end.
    recipe : Recipe
    folder : path-like, optional
        Where to write ``config.toml``, ``state.safetensors`` (for resuming), ``model.safetensors`` (the kept network),
        ``log.csv`` and finally ``result.json``. By default nothing is written. The network's file lists hashes of the
        training and validation images, up to 50,000, so that ``unpose evaluate`` does not test on them.
    device : torch.device or str, default "cpu"
    processes : Processes, optional
        From ``unpose.train.processes.joined_processes`` under ``torchrun``; by default this process alone.
    resume : bool, default False
        Continue from the state in the folder, if there is one. On the same device and number of threads the result
        equals that of an uninterrupted run bit for bit.
    force : bool, default False
        Accept a folder that holds another run of training, finished or begun, whose files are removed. Files of others
        stay, and a folder that holds no run is refused.
    discovery : Discovery, optional
        What is known about the symmetries of the training images, which the result then contains. By default they are
        looked at if the group of the recipe is "auto".
    checkpoint_steps : int, optional
        Save the state every so many steps; by default after every epoch and every five minutes.
    progress : callable, optional
        Called with a :class:`TrainingProgress` after steps; may raise :class:`StoppedError` to stop.
    on_epoch : callable, optional
        Called with the history after every epoch.
    limits : Limits, optional
        From ``unpose.train.limits``: when the run saves and waits, and what it keeps in memory.

    Returns
    -------
    TrainingResult

    Raises
    ------
    DivergedError
        If the loss or a weight becomes NaN or infinite. The last good state and the kept network stay in the folder.

    Notes
    -----
    On one GPU a step is captured as a CUDA graph and replayed. If a network cannot be captured, it is trained without,
    more slowly and with a warning. Training images stay on the GPU if they take at most a quarter of its free memory.

    Examples
    --------
    >>> from unpose.data import load
    >>> from unpose.train import recipe_from
    >>> options = {"width": 1, "stages": [1]}
    >>> recipe = recipe_from({"epochs": 1, "batch_size": 512, "network": {"options": options}})
    >>> len(train(load("digits"), recipe).history)
    1
    """
    if recipe.unlabelled.loss != "none":
        raise ValueError("this recipe learns without labels; use unpose.train.train_unlabelled")
    processes = processes or Processes()
    if recipe.network.group == AUTO:
        discovery = discovery or discover_group(dataset.train.images, dataset.train.labels)
        recipe = recipe.changed(group=discovery.finite_group)
    state = optimize(
        dataset, recipe, folder, kind=objective_of(recipe), device=device, processes=processes, resume=resume,
        force=force, checkpoint_steps=checkpoint_steps, progress=progress, on_epoch=on_epoch, limits=limits,
    )  # fmt: skip
    best = state.best_network()
    row = state.history[state.best_epoch - 1]
    tested = class_figures(best, dataset.test, dataset.classes, processes=processes, device=torch.device(device))
    symmetry = None
    if recipe.symmetry.method != "none":
        symmetry = make_symmetry(recipe, dataset)
        symmetry.load_state_dict(state.extra)
    result = TrainingResult(
        best, state.history, state.best_epoch, row["validation_accuracy"], tested.accuracy, tested, symmetry, discovery
    )
    if folder is not None and processes.is_first:
        table = json.dumps(_result_table(result, recipe, dataset), indent=2)
        write_text(Path(folder) / RESULT_FILE, table + "\n")
    processes.wait()
    return result


def objective_of(recipe: Recipe) -> type[Objective]:
    """What a recipe for labelled images optimizes."""
    return Objective if recipe.symmetry.method == "none" else SymmetryObjective


def step_seconds(
    recipe: Recipe, dataset: Dataset, *, kind: type[Objective] = Objective, device: torch.device | str = "cpu"
) -> float:
    """Time a step as :func:`optimize` runs it: the batch, its poses, the precision, the optimizer and the average.

    The first step also allocates memory and compiles or captures kernels; the second one counts, unless it is slower.
    """
    device, processes, limits = torch.device(device), Processes(), Limits()
    recorder = _capture_for(device, processes, limits)
    seconds = math.inf
    with _reproducible(device):
        objective = kind(dataset, recipe, device, processes)
        state = _fresh_state(recipe, dataset, objective, device, recorder is not None)
        state.network.train()
        step = _step_of(state, recipe, processes, min(recipe.batch_size, len(dataset.train)), objective, recorder)
        store = make_image_store(dataset.train, device, limits.resident_fraction)
        rows = objective.order(0, recipe.batch_size)[: recipe.batch_size]
        for number in range(2):
            started = time.perf_counter()
            step(*objective.batch(store, rows, number), number)
            state.totals.tolist()  # waits for a GPU
            seconds = min(seconds, time.perf_counter() - started)
    return seconds


def _step_of(
    state: State, recipe: Recipe, processes: Processes, batch: int, objective: Objective, recorder: Capture | None
) -> Step:
    """The training step; once it is recorded, tensors of the state are only written in place."""
    step: Step = partial(training_step, state, recipe, processes, batch, objective)
    return step if recorder is None else GraphedFunction(step, state.changing, objective.device, recorder)


def _capture_for(device: torch.device, processes: Processes, limits: Limits) -> Capture | None:
    """What records the training step: by default a CUDA graph on a GPU, and nothing on the CPU.

    With several processes nothing is captured: all-reduce would have to be captured in all of them or in none, and a
    process that cannot capture would leave the others waiting.
    """
    if processes.count > 1:
        return None
    return limits.capture or (capture if device.type == "cuda" else None)


def optimize(
    dataset: Dataset,
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    kind: type[Objective] = Objective,
    device: torch.device | str = "cpu",
    processes: Processes | None = None,
    resume: bool = False,
    force: bool = False,
    checkpoint_steps: int | None = None,
    progress: ProgressCallback | None = None,
    on_epoch: EpochCallback | None = None,
    limits: Limits | None = None,
) -> State:
    """Run all epochs of a recipe for an objective, as :func:`train` describes; return the state at the end."""
    if checkpoint_steps is not None and checkpoint_steps < 1:
        raise ValueError(f"checkpoint_steps must be at least 1, got {checkpoint_steps}")
    processes, limits = processes or Processes(), limits or Limits()
    device, folder = torch.device(device), None if folder is None else Path(folder)
    batch = recipe.batch_size * processes.count
    if len(dataset.train) < processes.count:
        raise InputError(f"{len(dataset.train)} training images are fewer than the {processes.count} processes")
    if folder is not None and processes.is_first:
        _prepare_folder(folder, resume, force)
    recorder = _capture_for(device, processes, limits)
    with _reproducible(device):
        objective = kind(dataset, recipe, device, processes)
        per_epoch = objective.steps_in_epoch(batch)
        state = _fresh_state(recipe, dataset, objective, device, recorder is not None)
        identity = {"recipe": recipe_table(recipe), "data": data_fingerprint(dataset), "processes": processes.count}
        if folder is not None and resume and (folder / STATE_FILE).exists():
            load_state(folder / STATE_FILE, state, identity, objective.columns)
        elif folder is not None and processes.is_first:
            write_text(folder / CONFIG_FILE, recipe_toml(recipe))
        share_batch_statistics(state.network, processes)
        step = _step_of(state, recipe, processes, min(batch, len(dataset.train)), objective, recorder)
        store = make_image_store(dataset.train, device, limits.resident_fraction)
        notes = _data_notes(dataset, recipe, limits) if folder is not None and processes.is_first else {}
        run = _Run(
            recipe, dataset, objective, folder, device, processes, identity, per_epoch, batch, checkpoint_steps, store,
            step, notes, limits,
        )  # fmt: skip
        while len(state.history) < recipe.epochs:
            run.epoch(state, progress, on_epoch)
    return state


@dataclass
class _Run:
    """What does not change from step to step."""

    recipe: Recipe
    dataset: Dataset
    objective: Objective
    folder: Path | None
    device: torch.device
    processes: Processes
    identity: dict[str, Any]
    per_epoch: int
    batch: int
    checkpoint_steps: int | None
    store: ImageStore
    training_step: Step
    notes: dict[str, Any]  # what the network's file says about the training images
    limits: Limits
    saved_at: float = 0.0  # monotonic time at which the state was last written

    def epoch(self, state: State, progress: ProgressCallback | None, on_epoch: EpochCallback | None) -> None:
        """Finish the current epoch: remaining steps, validation and checkpoint."""
        recipe, epoch = self.recipe, len(state.history)
        order = self.objective.order(epoch, self.batch)
        started, self.saved_at = time.monotonic(), time.monotonic()
        state.network.train()
        while state.step < (epoch + 1) * self.per_epoch:
            place = state.step % self.per_epoch
            self._step(state, order[place * self.batch : (place + 1) * self.batch])
            last = state.step == (epoch + 1) * self.per_epoch
            if self.device.type == "cpu" or last or state.step % self.limits.loss_interval == 0:
                mean = self._mean_loss(state, epoch)
                steps = recipe.epochs * self.per_epoch
                self._report(progress, TrainingProgress(epoch + 1, recipe.epochs, state.step, steps, mean), state)
            if not last and self._is_due(state):
                self._save(state, epoch)
        loss, correct, seen = state.totals.tolist()
        figures = self.objective.figures(state.evaluated, loss / seen, correct / seen)
        for name, value in figures.items():
            if not math.isfinite(value):
                self._raise_diverged(state, epoch, f"the {name.replace('_', ' ')} became {value}")
        rate = learning_rate(recipe.optimizer, state.step - 1, self.per_epoch, recipe.epochs)
        seconds = round(time.monotonic() - started, 3)
        state.history.append({"epoch": epoch + 1, "learning_rate": rate, **figures, "seconds": seconds})
        state.totals.zero_()
        improved = state.keep(only_better=recipe.keep == "best")
        self._save(state, epoch, improved)
        if on_epoch is not None and self.processes.is_first:
            on_epoch(state.history)

    def _step(self, state: State, rows: Tensor) -> None:
        """Run one step of the optimizer."""
        recipe, step = self.recipe, state.step
        images, labels = self.objective.batch(self.store, rows, step)
        # Dropout uses the global generator; seeding it for each step makes it independent of earlier steps.
        torch.manual_seed(seed_for(recipe.seed, f"dropout {self.processes.rank}", step))
        set_learning_rate(state.optimizer, learning_rate(recipe.optimizer, step, self.per_epoch, recipe.epochs))
        self.training_step(images, labels, step)
        state.step += 1

    def _report(self, progress: ProgressCallback | None, current: TrainingProgress, state: State) -> None:
        if progress is not None:
            try:
                progress(current)
            except StoppedError:
                self._save(state, current.epoch - 1)
                raise

    def _mean_loss(self, state: State, epoch: int) -> float:
        """Return the mean loss of the epoch so far, over all processes; raises if it is not finite."""
        loss, _, seen = state.totals.tolist()
        if not math.isfinite(loss):
            self._raise_diverged(state, epoch, f"the loss became {loss / seen}")
        return loss / seen

    def _is_due(self, state: State) -> bool:
        if self.folder is None:
            return False
        if self.checkpoint_steps is not None:
            return state.step % self.checkpoint_steps == 0
        return self.processes.is_first and time.monotonic() - self.saved_at > self.limits.checkpoint_seconds

    def _save(self, state: State, epoch: int, improved: bool = False) -> None:
        if not state.is_finite():
            self._raise_diverged(state, epoch, "weights became NaN or infinite")
        if self.folder is None or not self.processes.is_first:
            return
        if improved:
            notes = {"recipe": recipe_table(self.recipe), **state.history[-1], **self.notes, **self.objective.notes()}
            network = self.objective.kept(state.best_network())
            save_network(self.folder / MODEL_FILE, network, classes=self.objective.classes, notes=notes)
        save_state(self.folder / STATE_FILE, state, self.identity)
        write_text(self.folder / LOG_FILE, _csv(state.history, self.objective.columns))
        self.saved_at = time.monotonic()

    def _raise_diverged(self, state: State, epoch: int, what: str) -> NoReturn:
        rate = learning_rate(self.recipe.optimizer, state.step - 1, self.per_epoch, self.recipe.epochs)
        kept = "Nothing was written."
        if self.folder is not None:
            kept = (
                f"{self.folder} keeps the state of the last good checkpoint and the network kept so far."
                if (self.folder / STATE_FILE).exists()
                else "There was no good checkpoint yet."
            )
        raise DivergedError(
            f"{what} in epoch {epoch + 1}, at step {state.step}, with a learning rate of {rate:.3g}. {kept} Resuming "
            "would end the same way: start again with a lower optimizer.learning_rate or a longer warm-up"
            + (", or without mixed_precision" if self.recipe.is_mixed_on(self.device.type) else "")
            + "."
        )


def _prepare_folder(folder: Path, resume: bool, force: bool) -> None:
    """Create the folder of a run; nothing in it is overwritten unless forced."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    files = (STATE_FILE, CONFIG_FILE, MODEL_FILE, LOG_FILE, RESULT_FILE)
    if resume and (folder / RESULT_FILE).exists():
        raise ValueError(f"{folder} holds a finished run, which has been tested; see {RESULT_FILE} there")
    left = [path for name in files for path in folder.glob(f".{name}.*.tmp")]  # by a process killed while writing
    swept = left if resume or force else []
    others = [path for path in folder.iterdir() if path not in swept and path.name != ".lock"]
    is_run = _holds_run(folder)
    if resume and ((folder / STATE_FILE).exists() or (is_run and [path.name for path in others] == [CONFIG_FILE])):
        others = []
    if others and not force:
        raise ValueError(f"{folder} is not empty and nothing is overwritten; give another folder, resume, or force")
    if others and not is_run:
        raise ValueError(f"{folder} is not empty and holds no run to replace; give another folder")
    for path in (*swept, *(folder / name for name in files if others)):
        path.unlink(missing_ok=True)


def _holds_run(folder: Path) -> bool:
    """Whether a folder has the configuration of a run of training, finished or begun."""
    try:
        read_recipe(folder / CONFIG_FILE)
    except (RecipeError, OSError):
        return False
    return True


def _fresh_state(
    recipe: Recipe, dataset: Dataset, objective: Objective, device: torch.device, captured: bool = False
) -> State:
    network = objective.trained(build_network(recipe, dataset)).to(device)
    average = copy.deepcopy(network) if recipe.average else None
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    optimizer = make_optimizer(network, recipe.optimizer, capturable=captured)
    return State(network, optimizer, average, totals=totals, extra=objective.extra)


def data_fingerprint(dataset: Dataset) -> str:
    """Hash the training data (all labels and up to about a thousand images), so that a changed set is noticed."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.train.images.shape, dataset.train.images.dtype)).encode())
    digest.update(dataset.train.labels.tobytes())
    digest.update(dataset.validation.labels.tobytes())
    for number in range(0, len(dataset.train), max(1, len(dataset.train) // 1000)):
        digest.update(dataset.train.images[number].tobytes())
    return digest.hexdigest()


def _data_notes(dataset: Dataset, recipe: Recipe, limits: Limits) -> dict[str, Any]:
    """Return notes on the training images: name, light, and the hashes of all, unless they are too many or unknown."""
    notes = {"data": dataset.name, "light": light_note(dataset)}
    if (begin := recipe.network.begin) is None:
        return notes | hash_note(dataset, limits)
    before = read_notes(_starting_file(begin)).get("learnt")
    if before is None:
        return notes  # an incomplete list would be taken for a complete one
    return notes | hash_note(dataset, limits, decode_fingerprints(before, f"network.begin: {begin}"))


@contextmanager
def _reproducible(device: torch.device) -> Iterator[None]:
    """Use deterministic algorithms; restore the caller's generators and settings afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS at its first matrix product
        torch.use_deterministic_algorithms(True, warn_only=True)
        # In deterministic mode torch fills every new tensor, one launch each; our kernels write all they read.
        memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def _csv(history: list[dict[str, float]], columns: Sequence[str]) -> str:
    rows = [",".join(columns), *(",".join(repr(row[name]) for name in columns) for row in history)]
    return "\n".join(rows) + "\n"


def _result_table(result: TrainingResult, recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    return {
        "title": recipe.title,
        "data": {"name": dataset.name, "source": dataset.source},
        "images": {"train": len(dataset.train), "validation": len(dataset.validation), "test": len(dataset.test)},
        "group": recipe.network.group,
        "began_with": recipe.network.begin,
        "parameters": count_parameters(result.network),
        "epochs": recipe.epochs,
        "chosen_epoch": result.best_epoch,
        "chosen_by": "validation accuracy" if recipe.keep == "best" else "the end of the schedule",
        "validation_accuracy": result.validation_accuracy,
        "test_accuracy": result.test_accuracy,
        "test_by_class": None if result.by_class is None else result.by_class.as_dictionary(),
        "test_set": "used once, after the epoch was chosen",
        **({} if result.symmetry is None else {"symmetry": result.symmetry.strengths()}),
        **({} if result.discovery is None else {"group_found": [str(each) for each in result.discovery.findings]}),
    }
