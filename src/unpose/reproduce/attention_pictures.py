"""Figures 1, 2, A.1, B.1 and B.2 of Group Equivariant Stand-Alone Self-Attention For Vision.

Functions import what they need when they run, so that listing the items takes no time.
"""

import math
from typing import TYPE_CHECKING, Any

from unpose.reproduce.attention_laws import contrasted
from unpose.reproduce.items import Outcome, Settings

if TYPE_CHECKING:
    from torch import Tensor

_SIZE = 32


def _drawing() -> "Tensor":
    """The creature of :func:`unpose.data.drawings` in grey: (1, 1, 32, 32) in float64."""
    import torch

    from unpose.data import drawings

    return torch.from_numpy(drawings(_SIZE)[2].mean(-1)).double()[None, None]


def _shown(maps: "Tensor") -> Any:
    """Scale maps (n, h, w) to [0, 1] together."""
    low, high = maps.min(), maps.max()
    return ((maps - low) / (high - low).clamp(min=1e-12)).numpy()


def figure1(settings: Settings) -> Outcome:
    """Show that rotating the input rotates the feature maps and permutes them cyclically."""
    import torch

    from unpose.nn import GroupSelfAttention, LiftingSelfAttention
    from unpose.report import figures

    options: dict[str, Any] = {"heads": 2, "head_channels": 4, "window": 5}
    torch.manual_seed(settings.seed)
    lifting = contrasted(LiftingSelfAttention("c4", 1, 4, **options), settings.seed).double()
    group = contrasted(GroupSelfAttention("c4", 4, 1, **options), settings.seed + 1).double()
    image = _drawing()
    rows, turned_maps, errors = [], [], []
    with torch.no_grad():
        for turns in range(4):
            turned = image.rot90(turns, (-2, -1))
            maps = group(lifting(turned))[0, 0]  # (4, h, w)
            turned_maps.append(maps)
            wanted = turned_maps[0].roll(turns, 0).rot90(turns, (-2, -1))
            errors.append(float((maps - wanted).norm() / wanted.norm()))
    for turns, maps in enumerate(turned_maps):
        # What the four maps have in common is most of them, and hides that they are permuted.
        apart = maps - maps.mean(0)
        labels = [f"h = {90 * h}, from {90 * ((h - turns) % 4)}" for h in range(4)]
        shown = [
            figures.montage(_shown(image.rot90(turns, (-2, -1))[0]), columns=1, scale=3, labels=["input"]),
            figures.montage(_shown(apart), columns=4, scale=3, labels=labels),
        ]
        rows.append(figures.beside(shown))
    title = "Rotating the input rotates the maps of a group layer and permutes them (less the mean over h)"
    figure = figures.above(rows, title=title)
    finding = f"Rotated and permuted, the maps of all four inputs agree up to {max(errors):.0e}."
    return Outcome({"errors": errors}, [finding], figure)


def figure2(settings: Settings) -> Outcome:
    """Compare rotating a discrete kernel, which must be interpolated, with rotating a position encoding."""
    import torch

    from unpose.groups import rotation
    from unpose.images import warp
    from unpose.nn import HarmonicEncoding
    from unpose.nn import position_table as table_of
    from unpose.report import figures

    torch.manual_seed(settings.seed)
    angles, size = (0.0, 45.0, 90.0), 5
    kernel = torch.randn(1, 1, size, size, dtype=torch.float64)
    encoding = HarmonicEncoding(1, None, 1, reach=2.0).double()
    errors: dict[str, float] = {}

    def encoded(angle: float) -> "Tensor":
        inverse = rotation(torch.tensor(-math.radians(angle), dtype=torch.float64))[None, :2, :2]
        with torch.no_grad():
            return table_of(encoding, inverse, torch.zeros(1, 1, dtype=torch.long), (size, size))[0, 0, 0, :, :, 0]

    def resampled(angle: float, of: "Tensor") -> "Tensor":
        return warp(of, rotation(torch.tensor(math.radians(angle), dtype=torch.float64)))

    def error(found: "Tensor", wanted: "Tensor") -> float:
        return float((found - wanted).norm() / wanted.norm())

    quarter = kernel.rot90(1, (-2, -1))
    errors["a kernel, by 45 degrees twice, against 90 degrees"] = error(resampled(45, resampled(45, kernel)), quarter)
    # The encoding is a function of the plane: rotating twice is evaluating it once, at the composed rotation.
    twice = encoded(90)
    errors["an encoding, by 90 degrees, against its exact rotation"] = error(twice, encoded(0).rot90(1, (-2, -1)))
    panels = [
        figures.montage(
            _shown(torch.cat([resampled(angle, kernel)[0] for angle in angles])), columns=3, scale=16,
            labels=[f"{angle:.0f} degrees" for angle in angles], title="(a) A discrete kernel, interpolated",
        ),
        figures.montage(
            _shown(torch.stack([encoded(angle) for angle in angles])), columns=3, scale=16,
            labels=[f"{angle:.0f} degrees" for angle in angles], title="(b) A position encoding, evaluated",
        ),
    ]  # fmt: skip
    finding = (
        f"Rotated by 45 degrees twice, a random 5 x 5 kernel differs by {errors[next(iter(errors))]:.0%} from the "
        "kernel rotated by 90 degrees; an encoding is evaluated at the rotated offsets and has no such error."
    )
    return Outcome({"errors": errors}, [finding], figures.above(panels))


def figure_a1(settings: Settings) -> Outcome:
    """Show that a kernel is the same at every pixel, while attention weights depend on pixel and content."""
    import torch

    from unpose.nn import LiftingSelfAttention
    from unpose.report import figures

    torch.manual_seed(settings.seed)
    window = 7
    layer = contrasted(
        LiftingSelfAttention("c1", 1, 1, heads=1, head_channels=4, window=window), settings.seed
    ).double()
    image = _drawing()
    places = [(10, 12), (16, 16), (22, 20)]
    weights = torch.cat([_attention_weights(layer, image, place, window) for place in places])  # (n, window, window)
    kernel = torch.randn(window, window, dtype=torch.float64)
    marked = image[0, ..., None].repeat(1, 1, 1, 3)  # (1, h, w, 3)
    for row, column in places:
        marked[0, row, column] = torch.tensor([1.0, 0.2, 0.1], dtype=torch.float64)
    spread = float(weights.std(0).norm() / weights.mean(0).norm())
    figure = figures.beside(
        [
            figures.montage(marked.clamp(0, 1).numpy(), columns=1, scale=6, title="Three queries"),
            figures.montage(
                _shown(torch.stack([kernel] * 3)), columns=3, scale=10, title="(a) Convolution: one kernel for all",
            ),
            figures.montage(_shown(weights), columns=3, scale=10, title="(b) Attention: weights of each query"),
        ]
    )  # fmt: skip
    finding = f"The weights of the three queries differ by {spread:.0%} of their norm; a kernel is the same for all."
    return Outcome({"spread of the weights": spread}, [finding], figure)


def _attention_weights(layer: Any, image: "Tensor", place: tuple[int, int], window: int) -> "Tensor":
    """Return the attention weights of one query, (1, window, window), from attention to one-hot values."""
    import torch

    from unpose.nn import group_attention
    from unpose.nn import position_table as table_of

    with torch.no_grad():
        projected = layer.project(image.movedim(1, -1)).unflatten(-1, (3, layer.heads, -1))  # (1, h, w, 3, n, d)
        query, key, _ = projected.permute(3, 0, 4, 1, 2, 5)[:, :, :, None].unbind(0)  # (1, n, 1, h, w, d)
        table = table_of(layer.encoding, layer.inverses[:1], layer.relations[:1, :1], (window, window))
        height, width = image.shape[-2:]
        values = torch.eye(height * width, dtype=image.dtype).view(1, 1, 1, height, width, -1)
        values = values.expand(-1, layer.heads, -1, -1, -1, -1)
        found = group_attention(query, key, values, table)[0, 0, 0, place[0], place[1]].view(height, width)
    radius = window // 2
    return found[place[0] - radius : place[0] + radius + 1, place[1] - radius : place[1] + radius + 1][None]


def figure_b1(settings: Settings) -> Outcome:
    """Show lifting self-attention on four rotations: rotated encodings and the maps they give."""
    import torch

    from unpose.nn import LiftingSelfAttention
    from unpose.report import figures

    torch.manual_seed(settings.seed)
    layer: Any = contrasted(
        LiftingSelfAttention("c4", 1, 1, heads=1, head_channels=4, window=7, encoding="harmonic"), settings.seed
    ).double()
    return _encodings_and_maps(layer, _drawing(), "Lifting: L_h[rho] for h in c4, and the map of each", figures)


def figure_b2(settings: Settings) -> Outcome:
    """Show group self-attention on four rotations: encodings of every pair of elements and the maps they give."""
    import torch

    from unpose.nn import GroupSelfAttention, LiftingSelfAttention
    from unpose.report import figures

    torch.manual_seed(settings.seed)
    lifting = contrasted(LiftingSelfAttention("c4", 1, 2, heads=1, head_channels=4, window=5), settings.seed).double()
    layer: Any = contrasted(
        GroupSelfAttention("c4", 2, 1, heads=1, head_channels=4, window=7, encoding="harmonic"), settings.seed
    ).double()
    with torch.no_grad():
        maps = lifting(_drawing())
    title = "Group: P(h^-1 dx, h^-1 k), a row for each h, a column for each k, and the map of each h"
    return _encodings_and_maps(layer, maps, title, figures)


def _encodings_and_maps(layer: Any, inputs: "Tensor", title: str, figures: Any) -> Outcome:
    """Draw the first channel of the position table, (order, keys), beside the output of every element."""
    import torch

    from unpose.nn import position_table as table_of

    with torch.no_grad():
        table = table_of(layer.encoding, layer.inverses, layer.relations, (layer.window,) * 2)[0, ..., 0]
        result = layer(inputs)[0, 0]  # (order, h, w)
    order, keys = table.shape[:2]
    # P(h^-1 dx, h^-1 k): one step of h rotates the encoding and moves it on by one element.
    moved = table[0].roll(1 if keys > 1 else 0, 0).rot90(1, (-2, -1))
    error = float((moved - table[1]).norm() / moved.norm())
    figure = figures.beside(
        [
            figures.montage(_shown(table.flatten(0, 1)), columns=keys, scale=8 if keys == 1 else 5),
            figures.montage(_shown(result), columns=1, labels=[f"h = {90 * h}" for h in range(order)]),
        ],
        title=title,
    )
    finding = f"The encoding of h is that of the identity, rotated by h, up to {error:.0e}; no image is resampled."
    return Outcome({"error of the rotated encoding": error}, [finding], figure)
