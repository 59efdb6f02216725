"""The resumable state of a training run in one safetensors file: weights, optimizer, moving average and counters.

Metadata is JSON; nothing is pickled. Random numbers and the learning rate are functions of the seed and the step, so
they need no state. What is read is compared with what the recipe builds, by name and shape, before it is used.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.optim import Optimizer

from unpose.files import write_chunks
from unpose.nn import Network
from unpose.train.checkpoint import read_header, strict_json

__all__ = ["State", "StateError", "load_state", "load_state_if_any", "save_state"]

FORMAT = 1
"""Version of the file layout; increased when older readers would misread the file."""

STATE_FILE = "state.safetensors"
_MOMENTS = {"step", "exp_avg", "exp_avg_sq", "momentum_buffer"}
COLUMNS = (
    "epoch", "learning_rate", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds",
)  # fmt: skip


class StateError(ValueError):
    """A file from which a run cannot be resumed; the message names the file and the reason."""


@dataclass
class State:
    """The state of a run between two steps."""

    network: Network
    optimizer: Optimizer
    average: Network | None  # moving average of the weights
    step: int = 0
    # Of this epoch: loss, correct answers, images.
    totals: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    history: list[dict[str, float]] = field(default_factory=list)  # one row per finished epoch
    extra: dict[str, Tensor] = field(default_factory=dict)  # what the objective remembers, written in place
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the epoch to keep; empty before the first
    best_epoch: int = 0

    @property
    def evaluated(self) -> Network:
        """The network that is validated and kept: the moving average, if there is one."""
        return self.network if self.average is None else self.average

    def changing(self) -> list[Tensor]:
        """Return every tensor that a training step writes to."""
        networks = [self.network] if self.average is None else [self.network, self.average]
        weights = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
        moments = [value for moments in self.optimizer.state.values() for value in moments.values()]
        return [
            *weights,
            *(moment for moment in moments if isinstance(moment, Tensor)),
            self.totals,
            *self.extra.values(),
        ]

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(torch.isfinite(weight).all()) for weight in self.network.state_dict().values())

    def keep(self, *, only_better: bool) -> bool:
        """Keep the last epoch's weights; with ``only_better``, only if it validates best."""
        now, before = self.history[-1], self.history[self.best_epoch - 1] if self.best else None
        if only_better and before is not None and _validation_rank(now) <= _validation_rank(before):
            return False
        self.best = {name: weight.detach().cpu().clone() for name, weight in self.evaluated.state_dict().items()}
        self.best_epoch = len(self.history)
        return True

    def best_network(self) -> Network:
        """Return a copy of the network with the kept weights, in evaluation mode."""
        found = copy.deepcopy(self.evaluated)
        found.load_state_dict(self.best)
        return found.eval()


def _validation_rank(row: dict[str, float]) -> tuple[float, float]:
    return row["validation_accuracy"], -row["validation_loss"]


def save_state(path: Path, state: State, identity: dict[str, Any]) -> Path:
    """Write a state atomically. ``identity`` identifies the run; :func:`load_state` compares it."""
    about = {
        "format": FORMAT,
        "identity": identity,
        "step": state.step,
        "history": state.history,
        "best_epoch": state.best_epoch,
    }
    content = safetensors.torch.save(_tensors(state), metadata={"unpose-run": json.dumps(about)})
    return write_chunks(path, [content])


def load_state(path: Path, state: State, identity: dict[str, Any], columns: Sequence[str] = COLUMNS) -> State:
    """Load a saved state into a freshly built one; ``columns`` are the entries of a row of its history.

    Raises :class:`StateError`, leaving the state untouched, if the file is truncated, modified, of another version or
    of another run.
    """
    try:
        content = path.read_bytes()
        header = read_header(content)
        about = _about(header)
        _check_identity(about.get("identity"), identity)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        moments = _check_names(state, shapes)
        step, best_epoch = _count(about, "step"), _count(about, "best_epoch")
        history = _history(about.get("history"), columns)
        if not 0 <= best_epoch <= len(history) or bool(best_epoch) != any(n.startswith("best.") for n in shapes):
            raise StateError(f"its best epoch, {best_epoch}, is none of its {len(history)} epochs")
        tensors = safetensors.torch.load(content)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, safetensors.SafetensorError) as error:
        raise StateError(f"{path} does not hold a resumable run: {error}") from error
    state.network.load_state_dict(_with_prefix(tensors, "network."))
    if state.average is not None:
        state.average.load_state_dict(_with_prefix(tensors, "average."))
    saved = state.optimizer.state_dict()
    saved["state"] = {index: {name: tensors[f"optimizer.{index}.{name}"] for name in names} for index, names in moments}
    state.optimizer.load_state_dict(saved)
    state.totals = tensors["totals"].to(state.totals)
    for name, kept in state.extra.items():
        kept.copy_(tensors[f"extra.{name}"])
    state.best, state.best_epoch = _with_prefix(tensors, "best."), best_epoch
    state.step, state.history = step, history
    return state


def load_state_if_any(path: Path, state: State, identity: dict[str, Any]) -> State:
    """Load a saved state, or return the fresh one if there is no such file."""
    return load_state(path, state, identity) if path.exists() else state


def _tensors(state: State) -> dict[str, Tensor]:
    found = {f"network.{name}": weight for name, weight in state.network.state_dict().items()}
    if state.average is not None:
        found |= {f"average.{name}": weight for name, weight in state.average.state_dict().items()}
    found |= {f"best.{name}": weight for name, weight in state.best.items()}
    for index, moments in state.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": moment for name, moment in moments.items() if isinstance(moment, Tensor)}
    found |= {f"extra.{name}": tensor for name, tensor in state.extra.items()} | {"totals": state.totals}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}


def _about(header: dict[str, Any]) -> dict[str, Any]:
    text = header.get("__metadata__", {}).get("unpose-run")
    if not isinstance(text, str):
        raise StateError("it holds tensors but no training state")
    about = strict_json(text.encode(), "its description")
    if about.get("format") != FORMAT:
        raise StateError(f"it has layout {about.get('format')!r}, and this version of unpose reads layout {FORMAT}")
    return about


def read_identity(path: Path) -> dict[str, Any]:
    """Read what identifies the run of a state: its recipe, a fingerprint of its data, its number of processes."""
    found = _about(read_header(path.read_bytes())).get("identity")
    if not isinstance(found, dict):
        raise StateError(f"{path} does not identify its run")
    return found


def _check_identity(found: Any, wanted: dict[str, Any]) -> None:
    plain = json.loads(json.dumps(wanted))
    if not isinstance(found, dict):
        raise StateError("it does not identify its run")
    for name, value in plain.items():
        if found.get(name) != value:
            raise StateError(f"its {name} is {found.get(name)!r}, this run's is {value!r}")


def _check_names(state: State, shapes: dict[str, tuple[int, ...]]) -> list[tuple[int, list[str]]]:
    """Check names and shapes of all tensors; return the optimizer's moments of each parameter."""
    weights = {name: tuple(weight.shape) for name, weight in state.network.state_dict().items()}
    wanted = {f"network.{name}": shape for name, shape in weights.items()} | {"totals": (3,)}
    wanted |= {f"extra.{name}": tuple(tensor.shape) for name, tensor in state.extra.items()}
    if state.average is not None:
        wanted |= {f"average.{name}": shape for name, shape in weights.items()}
    if any(name.startswith("best.") for name in shapes):
        wanted |= {f"best.{name}": shape for name, shape in weights.items()}
    moments: dict[int, list[str]] = {}
    groups = state.optimizer.state_dict()["param_groups"]
    order = [index for group in groups for index in group["params"]]
    parameters = [parameter for group in state.optimizer.param_groups for parameter in group["params"]]
    optimized = dict(zip(order, parameters, strict=True))
    for name, shape in shapes.items():
        if name.startswith("optimizer."):
            _, index, moment = name.split(".")
            known = int(index) in optimized and moment in _MOMENTS
            if not known or shape not in ((), tuple(optimized[int(index)].shape)):
                raise StateError(f"its tensor {name!r} of shape {shape} belongs to no parameter")
            wanted[name] = shape
            moments.setdefault(int(index), []).append(moment)
    for name in wanted.keys() | shapes.keys():
        if wanted.get(name) != shapes.get(name):
            raise StateError(f"its tensor {name!r} has shape {shapes.get(name)}, the run needs {wanted.get(name)}")
    return sorted(moments.items())


def _count(about: dict[str, Any], name: str) -> int:
    value = about.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise StateError(f"its {name} is {value!r}, not a non-negative integer")
    return value


def _history(rows: Any, columns: Sequence[str]) -> list[dict[str, float]]:
    if not isinstance(rows, list):
        raise StateError("its history is missing")
    for row in rows:
        if set(row) != set(columns) or not all(isinstance(value, int | float) for value in row.values()):
            raise StateError("its history has malformed rows")
    return rows


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
