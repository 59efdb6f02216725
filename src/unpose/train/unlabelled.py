"""Learn an encoder from images without labels: VICReg, with poses of the group as views and neighbours as positives.

Two views of an image are the image at two random poses, with random changes of light. The encoder is learnt such that
their vectors are similar, while the entries of the vectors vary and do not repeat each other (Bardes, Ponce and LeCun
2022, VICReg, eq. 1 to 6). The second view may be of another image that is a neighbour of the first over the orbit.
"""

import copy
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from unpose.align import nearest
from unpose.audit import effective_rank, spanning_tree_length
from unpose.data import Dataset, InputError, Split
from unpose.data.splits import decode_fingerprints, image_fingerprints
from unpose.discover import AUTO, discover_group
from unpose.files import write_text
from unpose.groups import FiniteGroup, parse
from unpose.images import as_batch, displacements, sample, source_points
from unpose.nn import Network, count_parameters
from unpose.train.batches import ImageStore, random_bends, random_poses, seed_for, to_device
from unpose.train.checkpoint import read_notes
from unpose.train.evaluation import predict_logits
from unpose.train.loop import (
    CONFIG_FILE,
    MODEL_FILE,
    RESULT_FILE,
    EpochCallback,
    ProgressCallback,
    data_fingerprint,
    optimize,
    step_seconds,
)
from unpose.train.objective import Objective
from unpose.train.processes import Processes
from unpose.train.recipe import Recipe, named_recipe, read_recipe
from unpose.train.state import STATE_FILE, read_identity
from unpose.train.vicreg import vicreg_loss

FEWEST_IMAGES = 8
"""For fewer images there is nothing to tell apart."""
COLLAPSED_RANK, COLLAPSED_TREE = 1.5, 0.05
"""Vectors have collapsed if their effective rank and the mean edge of their spanning tree are both below these.

The rank is that of :func:`collapse_gauges`: 2 for vectors of deviation one along a single line."""
_GAUGED = 256
"""Images whose vectors are measured after every epoch; the spanning tree compares all pairs of them."""
_CHUNK = 4096
"""Images that are handled at once."""
_CONFIRM_AT = 1 / 3
"""Share of the epochs after which neighbours that the encoder does not confirm are dropped."""
_SAMPLED, _NEARER_THAN = 1000, 0.95
"""A neighbour must be nearer than this share of so many images."""
_LARGEST_BOX = 0.5
"""Largest side of an erased rectangle, as a share of the image."""
_SMALLEST_BOX = 0.15
_JITTER = math.radians(10.0)
"""Rotation of the views either way, if the group contains no quarter turn."""


class EncoderAndExpander(Network):
    """An encoder and the layers between its vectors and the loss: (b, c, h, w) -> (b, width)."""

    def __init__(self, encoder: Network, width: int) -> None:
        super().__init__(encoder.group, network="encoder_and_expander", encoder=encoder.description, width=width)
        self.encoder = encoder
        outputs = encoder.description["n_classes"]
        self.expander = nn.Sequential(
            nn.BatchNorm1d(outputs),
            nn.Linear(outputs, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        vectors = self.encoder(images)
        with torch.autocast(vectors.device.type, enabled=False):  # half precision is for the convolutions alone
            found: Tensor = self.expander(vectors.float())
        return found


def random_views(images: Tensor, ground: Tensor, recipe: Recipe, step: int) -> Tensor:
    """Return a view of each image (n, c, h, w): a random pose, another light, noise, and sometimes a part erased.

    The level ``ground`` (n, c, 1, 1) of the background continues an image outside of its frame. The parts ``poses`` and
    ``unlabelled`` of the recipe bound the changes, and its seed and the step determine all random numbers.
    """
    part, poses, count = recipe.unlabelled, recipe.poses, len(images)
    height, width = images.shape[-2:]

    def moved(tensor: Tensor) -> Tensor:
        return to_device(tensor.to(images.dtype), images.device)

    def seed(purpose: str) -> int:
        return seed_for(recipe.seed, f"view {purpose}", step)

    points = source_points(moved(random_poses(poses, count, seed("poses"))), (height, width))
    if poses.bend:
        points = points + displacements(moved(random_bends(poses.bend, count, seed("bends"))), (height, width))
    views = sample(images - ground, points)
    drawn = torch.rand(count, 7, generator=torch.Generator().manual_seed(seed("light")), dtype=torch.float64)
    gain = torch.exp((2 * drawn[:, 0] - 1) * math.log(part.contrast))
    level = (2 * drawn[:, 1] - 1) * part.brightness
    views = views * moved(gain)[:, None, None, None]
    if part.erase:
        views = views.masked_fill(_boxes(moved(drawn[:, 2:]), part.erase, height, width), 0.0)
    views = views + ground + moved(level)[:, None, None, None]
    if part.noise:
        generator = torch.Generator(images.device).manual_seed(seed("noise"))
        views = views + part.noise * torch.randn(
            views.shape, generator=generator, device=views.device, dtype=views.dtype
        )
    return views


def _boxes(drawn: Tensor, probability: float, height: int, width: int) -> Tensor:
    """Random rectangles from uniform numbers (n, 5), as masks (n, 1, h, w) that are false for the other images."""
    sides = _SMALLEST_BOX + (_LARGEST_BOX - _SMALLEST_BOX) * drawn[:, :2]
    starts = drawn[:, 2:4] * (1 - sides)
    inside = []
    for axis, length in enumerate((height, width)):
        place = (torch.arange(length, device=drawn.device) + 0.5) / length  # (length,)
        inside.append((place >= starts[:, axis, None]) & (place < (starts + sides)[:, axis, None]))  # (n, length)
    chosen = drawn[:, 4] < probability
    return (inside[0][:, :, None] & inside[1][:, None, :] & chosen[:, None, None])[:, None]


class Unlabelled(Objective):
    """VICReg of two views of each image."""

    columns: ClassVar[tuple[str, ...]] = (
        "epoch", "learning_rate", "train_loss", "effective_rank", "tree_length", "seconds",
    )  # fmt: skip

    def __init__(self, dataset: Dataset, recipe: Recipe, device: torch.device, processes: Processes) -> None:
        super().__init__(dataset, recipe, device, processes)
        if processes.count > 1:
            raise ValueError("learning without labels runs in one process: start it without torchrun")
        if recipe.unlabelled.neighbour_share:
            self.extra["neighbours"] = orbit_neighbours(dataset.train.images, recipe, device)
            self.extra["epochs"] = torch.zeros((), dtype=torch.long)

    @property
    def classes(self) -> tuple[str, ...]:
        return ()

    def trained(self, network: Network) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.recipe.seed, "expander"))
            return EncoderAndExpander(network, self.recipe.unlabelled.expander)

    def kept(self, network: Network) -> Network:
        return _encoder_of(network)

    def steps_in_epoch(self, batch: int) -> int:
        return self.recipe.unlabelled.steps

    def order(self, epoch: int, batch: int) -> Tensor:
        """Indices of the images of an epoch, every image once before any is repeated."""
        n, seed = len(self.dataset.train), self.recipe.seed
        wanted = self.recipe.unlabelled.steps * batch
        generator = torch.Generator().manual_seed(seed_for(seed, "order", epoch))
        passes = [torch.randperm(n, generator=generator) for _ in range(-(-wanted // n))]
        return torch.cat(passes)[:wanted]

    def batch(self, store: ImageStore, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return first views, then second views: (2 b, c, h, w), and zeros in place of labels: (b,)."""
        partners = self._partners(rows, step)
        both = torch.cat([rows, partners])
        images, _ = store.take(both)
        views = random_views(images, store.ground(both), self.recipe, step)
        return views, torch.zeros(len(rows), dtype=torch.long, device=self.device)

    def _partners(self, rows: Tensor, step: int) -> Tensor:
        """The image of which the second view is taken: the image itself or one of its neighbours."""
        if "neighbours" not in self.extra:
            return rows
        near = self.extra["neighbours"]
        generator = torch.Generator().manual_seed(seed_for(self.recipe.seed, "partners", step))
        share, column = torch.rand(2, len(rows), generator=generator)
        chosen = near[rows, (column * near.shape[1]).long()]
        return torch.where(share < self.recipe.unlabelled.neighbour_share, chosen, rows)

    def loss(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        part = self.recipe.unlabelled
        first, second = outputs.chunk(2)
        loss = vicreg_loss(
            first, second, invariance=part.invariance, variance=part.variance, covariance=part.covariance
        )
        return loss * len(labels), torch.zeros((), device=outputs.device)

    def figures(self, network: Network, loss: float, correct: float) -> dict[str, float]:
        if "neighbours" in self.extra:
            self.extra["epochs"] += 1
            if int(self.extra["epochs"]) == round(_CONFIRM_AT * self.recipe.epochs):
                vectors = predict_logits(_encoder_of(network), self.dataset.train.images)
                self.extra["neighbours"].copy_(confirmed_neighbours(self.extra["neighbours"], vectors))
        # With the statistics of this batch in the norms, as in training: the running ones lag behind in short runs.
        training = copy.deepcopy(network).train()
        with torch.no_grad():
            batch = as_batch(self.dataset.validation.images, dtype=torch.float32).to(self.device)
            rank, tree = collapse_gauges(training(batch).double().cpu().numpy())
        return {"train_loss": loss, "effective_rank": rank, "tree_length": tree}


def collapse_gauges(vectors: NDArray) -> tuple[float, float]:
    """Effective rank and mean edge of the spanning tree of vectors (n, d), of which the mean is removed.

    Both gauges scale vectors to length one, and would not see vectors that shrink to a point. So each vector gets one
    more entry, the length of a vector whose entries have the deviation one, which the loss asks for.
    """
    centred = vectors - vectors.mean(0)
    whole = np.concatenate([centred, np.full((len(vectors), 1), vectors.shape[1] ** 0.5)], axis=1)
    return effective_rank(whole), spanning_tree_length(whole)


def has_collapsed(rank: float, tree: float) -> bool:
    """Whether both gauges say that all vectors are about the same."""
    return rank < COLLAPSED_RANK and tree < COLLAPSED_TREE


def orbit_neighbours(images: NDArray, recipe: Recipe, device: torch.device) -> Tensor:
    """The nearest images over the orbit of the recipe's poses, compared by their pixels: (n, k), on the CPU."""
    poses = recipe.poses
    turning = "se2" if poses.max_angle else "translation"
    group = f"{turning}+mirror" if poses.mirror else turning
    count = min(recipe.unlabelled.neighbours, len(images) - 1)
    found = nearest(
        images, count, quick=True, group=group, max_angle=poses.max_angle or math.pi, contrast="offset",
        device=str(device),
    )  # fmt: skip
    return torch.from_numpy(np.ascontiguousarray(found.indices)).long()


def confirmed_neighbours(near: Tensor, vectors: Tensor) -> Tensor:
    """Neighbours (n, k) by pixels that are also near by vectors (n, d); an image itself in place of the others.

    A neighbour is confirmed if its vector is nearer than those of 95 % of a sample of all images. Pixels over the orbit
    err where kinds differ by texture, and there the encoder knows better after a third of the epochs.
    """
    points = (vectors - vectors.mean(0)) / vectors.std(0).clamp(min=1e-6)
    points = normalize(points, dim=1)
    n = len(points)
    others = points[torch.linspace(0, n - 1, min(n, _SAMPLED)).round().long()]  # (m, d)
    kept = []
    for start in range(0, n, _CHUNK):
        rows = points[start : start + _CHUNK]
        limit = (rows @ others.T).quantile(_NEARER_THAN, dim=1)  # (b,)
        cosines = torch.einsum("bd,bkd->bk", rows, points[near[start : start + _CHUNK]])
        kept.append(cosines > limit[:, None])
    return torch.where(torch.cat(kept), near, torch.arange(n)[:, None])


@dataclass(frozen=True)
class UnlabelledResult:
    """An encoder that was learnt without labels.

    Attributes
    ----------
    encoder : Network
        Images (b, c, h, w) to vectors (b, d) that do not change under the group, in evaluation mode.
    history : list of dict
        One row per epoch: learning rate, loss, both gauges of collapse, seconds.
    has_collapsed : bool
        Whether the vectors that the loss compares are all about the same: then the encoder has learnt nothing.

    Examples
    --------
    >>> UnlabelledResult(None, [], False).has_collapsed
    False
    """

    encoder: Network
    history: list[dict[str, float]]
    has_collapsed: bool

    @staticmethod
    def is_in(folder: str | Path, images: ArrayLike, recipe: Recipe) -> bool:
        """Whether a folder holds the finished encoder of images (n, h, w) or (n, h, w, c) and of a recipe.

        A file lists the hashes of at most 50,000 images; of more, the state of the run knows number, size and a sample.
        """
        folder, array = Path(folder), np.asarray(images)
        try:
            learnt = read_notes(folder / MODEL_FILE).get("learnt")
            if learnt is not None:
                is_same = decode_fingerprints(learnt, str(folder)) == set(image_fingerprints(array))
            else:
                sampled = data_fingerprint(_unlabelled_dataset(array, "images"))
                is_same = read_identity(folder / STATE_FILE).get("data") == sampled
            return is_same and (folder / RESULT_FILE).exists() and read_recipe(folder / CONFIG_FILE) == recipe
        except (ValueError, OSError):
            return False


def unlabelled_recipe(
    group: str = "d4", *, max_angle: float | None = None, small: bool = False, epochs: int | None = None, seed: int = 0
) -> Recipe:
    """Return the recipe of an encoder that is learnt without labels, for a group.

    Parameters
    ----------
    group : str, default "d4"
        To which the vectors do not react: a finite group of the encoder, such as ``"d4"`` or ``"c4"``, or a continuous
        group such as ``"se2+mirror"``, for which the encoder has quarter turns (and mirrors).
    max_angle : float, optional
        Largest rotation of the views either way, in radians. By default the full circle if the group contains quarter
        turns, otherwise ten degrees. Below 45 degrees, the encoder of a continuous group has no turns.
    small : bool, default False
        Take the recipe ``unlabelled-small``, which suits a CPU, instead of ``unlabelled``.
    epochs : int, optional
        By default as many as the recipe has.
    seed : int, default 0

    Returns
    -------
    Recipe

    Examples
    --------
    >>> unlabelled_recipe("se2").network.group, unlabelled_recipe("translation+mirror").network.group
    ('c4', 'd1')
    """
    parsed = parse(group)
    if isinstance(parsed, FiniteGroup):
        turning, mirrored = parsed.order, bool((torch.linalg.det(parsed.elements) < 0).any())
        turning = turning // 2 if mirrored else turning
        name = parsed.name
    else:
        if parsed.ndim != 2:
            raise ValueError(f"encoders of images need a group of the plane, got {group!r}")
        turning = 4 if parsed.turns and (max_angle is None or max_angle >= math.pi / 4) else 1
        mirrored = parsed.mirrored
        name = f"{'d' if mirrored else 'c'}{turning}"
    if max_angle is None:
        max_angle = math.pi if turning >= 4 else _JITTER
    recipe = named_recipe("unlabelled-small" if small else "unlabelled")
    poses = replace(recipe.poses, max_angle=max_angle, mirror=mirrored)
    return replace(recipe.changed(group=name, epochs=epochs, seed=seed), poses=poses)


def train_unlabelled(
    images: ArrayLike,
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    *,
    name: str = "images",
    device: torch.device | str = "cpu",
    resume: bool = False,
    force: bool = False,
    progress: ProgressCallback | None = None,
    on_epoch: EpochCallback | None = None,
) -> UnlabelledResult:
    """Learn an encoder from images alone.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        At least eight.
    recipe : Recipe, optional
        By default that of :func:`unlabelled_recipe`; ``small`` on a CPU.
    folder : path-like, optional
        Where to write ``config.toml``, ``state.safetensors`` (for resuming), ``model.safetensors`` (the encoder),
        ``log.csv`` and finally ``result.json``. By default nothing is written.
    name : str, default "images"
        What the images are called in the files.
    device : torch.device or str, default "cpu"
    resume, force, progress, on_epoch : optional
        As in :func:`unpose.train.train`: a resumed run equals an uninterrupted one bit for bit on the same device and
        number of threads.

    Returns
    -------
    UnlabelledResult

    Notes
    -----
    A step costs a forward and a backward pass of two views of each image of a batch. Searching neighbours, where the
    recipe asks for them, costs about as much as the graph of :class:`unpose.InvariantClustering`.

    Examples
    --------
    >>> from unpose.train import recipe_from
    >>> network = {"kind": "group_resnet", "group": "c4", "options": {"widths": [2], "depths": [1]}}
    >>> learning = {"loss": "vicreg", "steps": 2, "expander": 8}
    >>> table = {"epochs": 1, "batch_size": 8, "keep": "last", "network": network, "unlabelled": learning}
    >>> images = np.random.default_rng(0).random((9, 12, 12)).astype(np.float32)
    >>> train_unlabelled(images, recipe_from(table)).encoder(torch.rand(3, 1, 12, 12)).shape
    torch.Size([3, 8])
    """
    recipe = recipe or unlabelled_recipe(small=torch.device(device).type == "cpu")
    if recipe.unlabelled.loss == "none":
        raise ValueError("this recipe trains a classifier; give it a table [unlabelled] with loss = 'vicreg'")
    if recipe.keep != "last":
        raise ValueError("without labels no epoch validates best: set keep = 'last' in the recipe")
    array = np.asarray(images)
    if array.ndim not in (3, 4) or len(array) < FEWEST_IMAGES:
        raise InputError(
            f"images must be (n, h, w) or (n, h, w, c) with at least {FEWEST_IMAGES} images, got shape {array.shape}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError("images must be finite; some pixels are NaN or infinite")
    if recipe.network.group == AUTO:
        recipe = recipe.changed(group=discover_group(array).finite_group)
    dataset = _unlabelled_dataset(array, name)
    state = optimize(
        dataset, recipe, folder, kind=Unlabelled, device=device, resume=resume, force=force, progress=progress,
        on_epoch=on_epoch,
    )  # fmt: skip
    last = state.history[-1]
    collapsed = has_collapsed(last["effective_rank"], last["tree_length"])
    result = UnlabelledResult(_encoder_of(state.best_network()), state.history, collapsed)
    if folder is not None:
        table = {
            "title": recipe.title, "data": {"name": name}, "images": len(array), "group": recipe.network.group,
            "parameters": count_parameters(result.encoder), "vector": result.encoder.description["n_classes"],
            "epochs": recipe.epochs, "effective_rank": last["effective_rank"], "tree_length": last["tree_length"],
            "has_collapsed": collapsed,
        }  # fmt: skip
        write_text(Path(folder) / RESULT_FILE, json.dumps(table, indent=2) + "\n")
    return result


def unlabelled_seconds(recipe: Recipe, images: ArrayLike, device: torch.device | str = "cpu") -> float:
    """Estimate the duration of :func:`train_unlabelled` from its first two steps.

    The search for neighbours, where the recipe asks for them, is not included.

    Parameters
    ----------
    recipe : Recipe
    images : array of shape (n, h, w) or (n, h, w, c)
    device : torch.device or str, default "cpu"

    Returns
    -------
    float
        In seconds.

    Examples
    --------
    >>> recipe = unlabelled_recipe("c1", small=True, epochs=2)
    >>> unlabelled_seconds(recipe, np.random.default_rng(0).random((9, 12, 12))) > 0
    True
    """
    dataset = _unlabelled_dataset(np.asarray(images)[: recipe.batch_size], "a few")
    alone = replace(recipe, unlabelled=replace(recipe.unlabelled, neighbour_share=0.0))
    seconds = step_seconds(alone, dataset, kind=Unlabelled, device=device)
    return seconds * recipe.unlabelled.steps * recipe.epochs


def _unlabelled_dataset(images: NDArray, name: str) -> Dataset:
    """Images in the form that the loop takes. All have the label 0; the validation part is measured for collapse."""
    whole = Split(images, np.zeros(len(images), dtype=np.int64))
    gauged = whole.take(np.linspace(0, len(images) - 1, min(_GAUGED, len(images))).round().astype(np.int64))
    return Dataset(name, "images without labels", ("no label", "unused"), whole, gauged, gauged)


def _encoder_of(network: Network) -> Network:
    if not isinstance(network, EncoderAndExpander):
        raise TypeError(f"expected an encoder with its expander, got {type(network).__name__}")
    return network.encoder
