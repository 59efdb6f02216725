"""Features of a network over the orbit: vectors that tell kinds apart, and that do not depend on pose.

Things of one kind that differ in texture, brightness and build have different pixels at every pose; a network that has
seen photographs maps them to similar vectors. The vector of an image is the mean over views of it: rotations, and
mirror images and scales if the group has them. :class:`FeatureSpace` then makes distances of vectors meaningful.
"""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from unpose.align import Progress
from unpose.audit import evaluation
from unpose.cluster.limits import DEFAULT
from unpose.cluster.pieces import Batch
from unpose.contours import outline_features
from unpose.files import read_file, refuse_code
from unpose.groups import parse_continuous, rotation
from unpose.images import border_level, downscale, warp
from unpose.images.imagenet import EXTRA_NETWORK, extra_network, has_extra_network
from unpose.images.statistics import count_statistics, image_statistics

OUTLINES = "contour"
"""Moduli of the Fourier coefficients of outlines, for silhouettes."""
STATISTICS = "statistics"
"""Fixed statistics of texture and shape that need no network and no other package."""
NAMES = ("auto", "pixels", "learn", STATISTICS, OUTLINES, EXTRA_NETWORK)
"""Texts that ``features`` may be; any other text is the path of a file."""
_TURNS = 8
"""Views at equal angles that vectors are averaged over; fewer if rotations are bounded."""
_SIZES = (160, 224, 256, 128, 96, 64, 32, 28)
"""Sides in pixels that are offered to a network, the first that it accepts is used; then the side of the images."""
_IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
"""Mean and standard deviation of the channels that nearly all networks for photographs expect."""
_WHOLE, _MIDDLE = 160, (112, 1.4)
"""What EfficientNet-Lite0 sees: the whole image at 160 pixels, and its middle, as large as in the whole, at 112.

In the middle the thing stands alone, without what lies beside it, such as other cells. Both together have more
neighbours of the same class than the whole alone (``docs/benchmarks/features.md``).
"""
_CHUNK_PIXELS = {"cpu": 2**20, "cuda": 2**24}
"""Pixels of views that a network is called with at a time."""
_DIMENSIONS = 128
_POWER = 0.5
_FULL_SVD = 1000
_BLOCK_BYTES = 2**27
"""Most memory of the products of some points with all others."""
_MAX_BYTES = 2**33


@dataclass(frozen=True)
class FeatureNetwork:
    """A network as a function from images (n, c, h, w) in [0, 1] to vectors (n, d).

    ``side`` is the side in pixels of the images that it takes, None for any; ``middle`` the side of a second view, of
    the middle of the images, and the factor by which it is enlarged; ``blocks`` the lengths of the parts of a vector
    that come from different layers. Vectors of ``statistics`` do not change under quarter turns and mirrors, so that
    views within a quarter turn are enough; and they are those of images without the effects of light, which networks
    for photographs are not made for. ``digest`` is the SHA-256 of the file that the network was read from, "" for none.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    side: int | None = None
    middle: tuple[int, float] | None = None
    blocks: tuple[int, ...] | None = None
    statistics: bool = False
    digest: str = ""

    def poses(self, group: str, max_angle: float) -> Tensor:
        """The poses (p, 3, 3) of the views whose vectors are averaged."""
        if not self.statistics:
            return orbit_poses(group, max_angle)
        count = _TURNS // 2
        return rotation(torch.arange(count) * (math.pi / 2 / count))


def not_seen(network: str, group: str, max_angle: float) -> list[str]:
    """What vectors of this network do not show although it counts as a difference in the group, in words.

    Known of the statistics and of outlines; nothing is known of other networks.
    """
    if network not in (STATISTICS, outline_features.__name__):
        return []
    kind = parse_continuous(group)
    found = ["rotations"] * (not kind.turns or max_angle < math.pi) + ["mirror images"] * (not kind.mirrored)
    if network != STATISTICS:
        found += ["shifts"] * (not kind.shifts) + ["sizes"] * (not kind.scales)
    return found


def missing_network_notes() -> list[str]:
    """What a reader of unstable clusters gains by the extra; nothing if it is installed."""
    if has_extra_network():
        return []
    return [
        "Features of a network tell photographs, cells and plankton apart better than pixels do: "
        "pip install 'unpose[features]'."
    ]


def feature_network(
    features: Any, images: Tensor, device: str | torch.device = "cpu", light: str = "keep"
) -> FeatureNetwork:
    """Make a network callable on images like the given ones (n, c, h, w), and try it on two of them.

    ``features`` is the name of a network, "statistics" for :mod:`unpose.images.statistics`, "contour" for the outlines
    of silhouettes, the path of an ``.onnx`` file, a torch module, a function, or a network of
    :mod:`unpose.nn` or its file or run folder.
    Functions are called with arrays (m, h, w) or (m, h, w, c) of the size of the images. Other networks are called with
    tensors (m, c, s, s), normalised as photographs of ImageNet are, with c = 3 if the network refuses the channels of
    the images, and with the first side s of 160, 224, 256, 128, 96, 64, 32 and 28 pixels that it accepts. Vectors of
    classifiers of :mod:`unpose.nn` and of timm are what the class scores are computed from; any other network must
    itself return features. Statistics ignore contrast unless ``light`` is "keep".
    """
    if isinstance(features, str) and features == EXTRA_NETWORK:
        statistics, blocks = extra_network(device)
        return FeatureNetwork(EXTRA_NETWORK, statistics, _WHOLE, _MIDDLE, 2 * blocks)
    if isinstance(features, str) and features == STATISTICS:
        alone = (1,) * count_statistics(images.shape[1])  # each has units of its own
        statistics = image_statistics if light == "keep" else _statistics_of_unit_contrast
        return FeatureNetwork(STATISTICS, statistics, blocks=alone, statistics=True)
    if isinstance(features, str) and features == OUTLINES:
        features = outline_features
    if isinstance(features, str | os.PathLike):
        name = os.fspath(features)
        refuse_code(name)
        shown = os.path.basename(os.path.normpath(name))
        if name.lower().endswith(".onnx"):
            return replace(_probe(name, shown, images), digest=network_digest(name))
        from unpose.train import load_network  # loads the networks of the package, which pixels alone do not need

        try:
            network = load_network(_network_file(name))
        except OSError as error:
            raise ValueError(
                f"features must be {', '.join(map(repr, NAMES))}, a torch module, a function, the path of an .onnx or "
                f".safetensors file, or the folder of a run of unpose train, got {name!r}"
            ) from error
        return replace(_own_network(network, shown, images, device), digest=network_digest(name))
    if isinstance(features, nn.Module):
        from unpose.nn import Network

        if isinstance(features, Network):
            return _own_network(features, "encoder", images, device)
        described = _BeforeClasses(features) if _gives_classes(features) else features
        return _probe(described.to(device), type(features).__name__, images)
    if callable(features):
        from unpose.adapt import as_model  # loads the networks of the package, which pixels alone do not need

        name = getattr(features, "__name__", type(features).__name__)
        model, has_channels = as_model(features), images.shape[1] > 1

        def call(views: Tensor) -> Tensor:
            views = views.cpu()
            array = views.movedim(1, -1).numpy() if has_channels else views[:, 0].numpy()
            batch, run = model.on(array)
            return run(batch)

        return FeatureNetwork(name, _checked(call, name))
    raise ValueError(f"features must be a name, a path, a torch module or a function, got {type(features).__name__}")


def _own_network(network: Any, name: str, images: Tensor, device: str | torch.device) -> FeatureNetwork:
    """Make a :class:`unpose.nn.Network` callable on images like the given ones (n, c, h, w).

    It is called with images at the size that it was trained at; grey images are repeated and colours averaged where it
    takes the other. Of a classifier, the vector is what its class scores are computed from.
    """
    network, last = network.to(device).eval(), _class_layer(network)
    channels, size = network.description["in_channels"], tuple(network.description["image_size"])
    if channels not in (1, 3, images.shape[1]):
        raise ValueError(f"{name} takes images with {channels} channels, and these have {images.shape[1]}")

    @torch.no_grad()
    def vectors(views: Tensor) -> Tensor:
        if views.shape[1] != channels:
            views = views.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        answer = network(views.float()) if last is None else _input_of(last, network, views.float())
        if answer.ndim != 2 or not torch.isfinite(answer).all():
            raise ValueError(f"{name} must give finite vectors (n, d), got shape {tuple(answer.shape)}")
        return answer

    vectors(torch.nn.functional.interpolate(images[:2].float(), size).to(device))
    is_resnet = network.description["network"] == "group_resnet"
    blocks = tuple(width for width in network.description["widths"] for _ in range(4)) if is_resnet else None
    return FeatureNetwork(name, vectors, None if size == tuple(images.shape[-2:]) else max(size), blocks=blocks)


def _class_layer(network: Any) -> nn.Module | None:
    """The linear layer that gives the class scores of a :class:`unpose.nn.Network`; None if it gives something else."""
    about = network.description
    if about.get("head", "classes") != "classes":
        return None
    layers = [each for each in network.modules() if isinstance(each, nn.Linear)]
    scores = [each for each in layers if each.out_features == about.get("n_classes")]
    return scores[-1] if scores else None


def _input_of(layer: nn.Module, network: Any, images: Tensor) -> Tensor:
    """What a layer of a network gets for images, pooled to vectors (n, d): over the group, scales and pixels."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        network(images)
    finally:
        hook.remove()
    found = seen[0]
    if found.ndim == 5:  # (n, d, group, h, w)
        return found.amax(2).mean((-2, -1))
    return found if found.ndim == 2 else found.flatten(1, -2).amax(1)  # (n, scales, d), (n, tokens, frames, d)


class _BeforeClasses(nn.Module):
    """A classifier with the interface of timm, (n, c, h, w) -> (n, d): what its class scores are computed from."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        return self.network.forward_head(self.network.forward_features(images), pre_logits=True)


def _gives_classes(network: Any) -> bool:
    """Whether this is a classifier with the interface of timm; other modules do not say what they return."""
    has_parts = all(callable(getattr(network, name, None)) for name in ("forward_features", "forward_head"))
    return isinstance(network, nn.Module) and has_parts and getattr(network, "num_classes", 0) > 0


def _statistics_of_unit_contrast(images: Tensor) -> Tensor:
    """Statistics (n, d) of images (n, c, h, w) that are scaled to a root mean square of one."""
    contrast = images.square().mean((1, 2, 3), keepdim=True).sqrt()
    return image_statistics(images / contrast.clamp(min=1e-12))


def orbit_poses(group: str, max_angle: float = math.pi) -> Tensor:
    """The poses (p, 3, 3) whose views are averaged: rotations up to ``max_angle`` and mirror images of the group.

    With mirror images, rotations are a quarter turn apart and begin at half a step. A mirror image at the angle a is
    the mirror of the image at -a, so that a network that treats mirror images alike, as those for photographs nearly
    do, sees eight angles as well; and the mean is the same for quarter turns and mirrors of an image, exactly.
    """
    kind = parse_continuous(group)
    step = 2 * math.pi / _TURNS
    if not kind.turns or max_angle < step / 2:
        angles = [0.0]
    elif max_angle >= math.pi - step / 2:
        angles = [step * turn for turn in range(_TURNS)]
        if kind.mirrored:
            angles = [step * (turn + 0.5) for turn in range(0, _TURNS, 2)]
    else:
        count = math.ceil(max_angle / step)
        angles = [max_angle * part / count for part in range(-count, count + 1)]
    poses = []
    for flip in (1.0, -1.0) if kind.mirrored else (1.0,):
        for angle in angles:
            c, s = math.cos(angle), math.sin(angle)
            poses.append([[c * flip, s, 0.0], [-s * flip, c, 0.0], [0.0, 0.0, 1.0]])
    return torch.tensor(poses)


def orbit_features(
    images: Tensor | Batch,
    network: FeatureNetwork,
    poses: Tensor,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> NDArray:
    """Vectors of images (n, c, h, w), the mean over their views at the poses (p, 3, 3): (n, d).

    If the network also sees the middle of the images, the vectors of the two views are concatenated. Views are sampled
    once, from the original pixels. Outside of its frame an image continues with the median of its border, so that the
    corners of a rotated view show no edges.
    """
    height, width = images.shape[-2:]
    views = [(network.side, 1.0)] if network.middle is None else [(network.side, 1.0), network.middle]
    largest = max(side or max(height, width) for side, _ in views)
    chunk = max(1, _CHUNK_PIXELS.get(torch.device(device).type, 2**22) // largest**2)
    rows = []
    for start in range(0, len(images), chunk):
        if progress is not None:
            progress("features", start, len(images))
        part = images[start : start + chunk]
        ground = torch.from_numpy(border_level(part.numpy())).to(part)[..., None, None]
        parts = [_mean_over_views(part, ground, network, poses, side, zoom, device) for side, zoom in views]
        rows.append(torch.cat(parts, dim=1).cpu().numpy())
    if progress is not None:
        progress("features", len(images), len(images))
    return np.concatenate(rows)


def _mean_over_views(
    images: Tensor, ground: Tensor, network: FeatureNetwork, poses: Tensor, side: int | None, zoom: float,
    device: str | torch.device,
) -> Tensor:  # fmt: skip
    """The mean vector (n, d) of images (n, c, h, w) at this side in pixels, enlarged by ``zoom`` about their middle."""
    height, width = images.shape[-2:]
    factor = 1.0 if side is None else max(height, width) / (side * zoom)
    shown = (images - ground if factor <= 1 else downscale(images - ground, factor)).to(device)
    scale = torch.diag(torch.tensor([1 / factor, 1 / factor, 1.0])) if factor < 1 else torch.eye(3)
    shape = (height, width) if side is None else (side, side)
    ground = ground.to(device)
    total: Any = 0.0
    for pose in poses:
        total = total + network.call(warp(shown, (scale @ pose).to(shown), shape) + ground).double()
    return total / len(poses)


@dataclass(frozen=True)
class FeatureSpace:
    """A map of vectors onto the unit sphere on which cosines compare kinds: ``normalise((f - mean) @ basis)``."""

    mean: NDArray  # (d,)
    basis: NDArray  # (d, r)

    def __call__(self, features: NDArray) -> NDArray:
        """(n, d) -> (n, r), rows of norm one."""
        if features.shape[1] != len(self.mean):
            raise ValueError(
                f"the features are vectors of {features.shape[1]} numbers, and those that were fitted had "
                f"{len(self.mean)}; give the network that was fitted, or fit again"
            )
        points = (features - self.mean) @ self.basis
        return points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)


def sampled_rows(n: int, most: int = DEFAULT.space_vectors) -> NDArray:
    """The up to ``most`` of n vectors, at equal steps, that a space is fitted to."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)


def fit_space(
    features: NDArray, blocks: tuple[int, ...] | None = None, most: int = DEFAULT.space_vectors
) -> FeatureSpace:
    """The space of up to 128 principal directions of vectors (n, d), each scaled to the square root of its spread.

    The blocks of a vector are first scaled to equal energy. Without scaling, the few directions of largest spread
    (often brightness) decide all distances; with all directions scaled alike, noise does. At most ``most`` vectors,
    at equal steps, are used.
    """
    if len(features) > most:
        features = features[sampled_rows(len(features), most)]
    mean = features.mean(0)
    centred = features - mean
    ends = np.cumsum(blocks or (features.shape[1],))
    scale = np.empty(features.shape[1])
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        scale[start:end] = 1 / max(float(np.sqrt((centred[:, start:end] ** 2).sum(1).mean())), 1e-12)
    centred = centred * scale
    rank = min(_DIMENSIONS, *features.shape)
    with threadpool_limits(1):  # threads would sum in another order
        if min(features.shape) <= _FULL_SVD:
            _, spread, directions = np.linalg.svd(centred, full_matrices=False)
        else:
            _, spread, directions = randomized_svd(centred, rank, random_state=0)
    spread, directions = spread[:rank], directions[:rank]
    kept = spread > 1e-6 * max(float(spread[0]), 1e-300)
    basis = scale[:, None] * directions[kept].T * spread[kept] ** (_POWER - 1)
    return FeatureSpace(mean, basis)


def cosine_neighbours(points: NDArray, others: NDArray | None, k: int) -> tuple[NDArray, NDArray]:
    """The k nearest of ``others`` (m, r) by cosine, for points (n, r) of norm one: indices and ``sqrt(2 - 2 cos)``.

    Without ``others``, the points are compared with each other, and not with themselves.
    """
    pool = torch.from_numpy(points if others is None else others)
    indices, cosines = [], []
    block = max(1, min(1024, _BLOCK_BYTES // (8 * len(pool))))
    for start in range(0, len(points), block):
        part = torch.from_numpy(points[start : start + block]) @ pool.T
        if others is None:
            part[torch.arange(len(part)), torch.arange(start, start + len(part))] = -2.0
        best = part.topk(min(k, part.shape[1] - (others is None)), dim=1)
        indices.append(best.indices.numpy())
        cosines.append(best.values.numpy())
    distances = np.sqrt(np.maximum(2 - 2 * np.concatenate(cosines), 0.0))
    return np.concatenate(indices), distances


def pose_change(
    images: Tensor, before: NDArray, network: FeatureNetwork, poses: Tensor, space: FeatureSpace,
    device: str | torch.device = "cpu",
) -> float:  # fmt: skip
    """By how much vectors change under a rotation halfway between two views: 0 not at all, 1 as between two images.

    ``before`` (n, d) are the vectors of the images (n, c, h, w). The result is the mean distance between the points of
    an image and of the rotated image, divided by the mean distance between the points of different images. Rotation
    cuts the corners off, which is part of the change.
    """
    turn = rotation(torch.tensor(math.pi / _TURNS / (2 if network.statistics else 1)))
    ground = torch.from_numpy(border_level(images.numpy())).to(images)[..., None, None]
    after = orbit_features(warp(images - ground, turn.to(images)) + ground, network, poses, device)
    own, turned = space(before), space(after)
    apart = np.linalg.norm(own - np.roll(own, 1, axis=0), axis=1).mean()
    return float(np.linalg.norm(own - turned, axis=1).mean() / max(apart, 1e-12))


def _checked(call: Callable[[Tensor], Any], name: str) -> Callable[[Tensor], Tensor]:
    """Pool maps (n, d, h, w) and tokens (n, t, d) to vectors (n, d), and refuse anything else."""

    def vectors(images: Tensor) -> Tensor:
        answer = call(images)
        if answer.ndim == 4:
            answer = answer.mean((2, 3))
        elif answer.ndim == 3:
            answer = answer.mean(1)
        if answer.ndim != 2:
            raise ValueError(
                f"{name} must return one vector per image, (n, d), or maps (n, d, h, w), got shape "
                f"{tuple(answer.shape)}"
            )
        return answer

    return vectors


def _probe(network: Any, name: str, images: Tensor) -> FeatureNetwork:
    """Find the channels and the side in pixels that a network accepts, by calling it."""
    from unpose.adapt import as_model

    model, own = as_model(network), max(images.shape[-2:])
    refusals = []
    for side in (*_SIZES, own):
        for channels in dict.fromkeys((3, images.shape[1])):
            if images.shape[1] not in (1, channels):
                continue

            def call(views: Tensor, channels: int = channels) -> Tensor:
                mean, deviation = _IMAGENET.to(views)[:, :, None, None]
                if channels == 3:
                    views = (views.expand(-1, 3, -1, -1) - mean) / deviation
                else:
                    views = (views - mean.mean()) / deviation.mean()
                with evaluation(network):
                    return model(views.contiguous())

            vectors = _checked(call, name)
            try:
                vectors(torch.nn.functional.interpolate(images[:2], (side, side)).to(_device_of(network)))
            except ValueError as error:
                refusals.append(f"{channels} x {side} x {side}: {error}")
                continue
            return FeatureNetwork(name, vectors, side)
    raise ValueError(f"{name} gives no features for images of any size that was tried. {refusals[0]}")


def _device_of(network: Any) -> torch.device:
    first = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def _network_file(path: str) -> str:
    """The file of a network: itself, or that of a run of ``unpose train``."""
    return path if path.lower().endswith((".onnx", ".safetensors")) else os.path.join(path, "model.safetensors")


def network_digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of the file of a network, or of that in a run of ``unpose train``."""
    return hashlib.sha256(read_file(_network_file(os.fspath(path)), _MAX_BYTES)).hexdigest()
