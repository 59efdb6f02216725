"""How a network reacts to an infinitesimal motion of its input, and what every module contributes (Gruver et al. 2023).

The Lie derivative of f along a generator X is ``L f = d/dt g(-t) f(g(t) x)`` at t = 0, with ``g(t) = exp(t X)``. It is
0 if f is equivariant. By the chain rule it is a sum over the modules of a network: the Lie derivative of the module
itself, sent through the derivative of everything after it.

Convention
----------
Generators are scaled so that the pixels of the image move by one pixel, as a root mean square. Maps of another size
move by as much divided by the stride. Tokens (n, t, d) of a square or rectangular grid of patches, with or without one
class token in front, move like the map that they are. The group axis of a map (n, c, order, h, w) stays as it is, so
that the parts of a rotation are those of its pixels only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unpose.audit.actions import Kind, disc_window
from unpose.audit.calls import evaluation
from unpose.audit.measurement import check_inputs, checked_numbers, discrimination
from unpose.audit.modules import NETWORK
from unpose.audit.orbit import spread
from unpose.audit.results import Plain
from unpose.audit.trace import Call, floats, map_floats, trace
from unpose.images import pixel_grid, smooth, source_points, warp

GENERATORS = ("x", "y", "rotation", "scale")
_PROJECTIONS = 16
"""Random projections of outputs with more numbers than this; batches average their noise."""

_ROUNDING = 1e-4
"""Contributions below this share of the distance of two outputs are not explained."""

_STEP = 1e-3
"""Step of finite differences, in pixels."""

OUTSIDE = "(outside of modules)"


@dataclass(frozen=True)
class LieRow:
    """What one module contributes to the Lie derivative of a network.

    Parameters
    ----------
    name, module : str
        Name and class of the module.
    sizes : tuple of float, one per generator
        Size of its contribution to the output, in the unit of :attr:`LieReport.totals`.
    shares : tuple of float, one per generator
        Its signed share of the whole derivative; all shares add up to 1.
    cause : {"aliasing", "border", "position", ""}
        Why it does not commute with shifts: it commutes with shifts by whole strides but not by parts of a pixel; it
        does so at the border; or it does not even commute with whole strides. Empty if its contribution is below 1 %.

    Examples
    --------
    >>> LieRow("pool", "MaxPool2d", (0.2,), (0.8,), "aliasing").cause
    'aliasing'
    """

    name: str
    module: str
    sizes: tuple[float, ...]
    shares: tuple[float, ...]
    cause: str


@dataclass(frozen=True)
class LieReport(Plain):
    """The result of :func:`lie_derivative`; ``print`` it to see the table.

    Parameters
    ----------
    generators : tuple of g str
        Names of the generators.
    totals : tuple of g float
        Size of the Lie derivative for one pixel of motion, relative to the distance of the outputs of two images.
    floors : tuple of g float
        What the interpolation of the input contributes: the response to the difference of two derivatives of the
        pixels, of second and of fourth order.
    control : float
        Response to a random smooth deformation that moves pixels as far.
    discrimination : float
        Spread of f over the images relative to its norm; 0 for a constant function.
    check : tuple of g float
        Difference between the derivative and finite differences of images that were really moved, relative to the
        larger of the derivative and the control.
    rows : tuple of LieRow
        One for each module, in the order of their calls, and one for what is computed outside of modules.

    Examples
    --------
    >>> images = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> lie_derivative(nn.Sequential(nn.Tanh(), nn.Flatten()), images, ("x",)).worst("x").name
    '1'
    """

    generators: tuple[str, ...]
    totals: tuple[float, ...]
    floors: tuple[float, ...]
    control: float
    discrimination: float
    check: tuple[float, ...]
    rows: tuple[LieRow, ...]

    def worst(self, generator: str) -> LieRow:
        """The module with the largest contribution for a generator."""
        index = self.generators.index(generator)
        if not self.rows:
            raise ValueError("only torch modules have rows; f was a plain function")
        return max(self.rows, key=lambda row: row.sizes[index])

    def __str__(self) -> str:
        names = [f"{row.name} ({row.module})" if row.module else row.name for row in self.rows]
        width = max(map(len, ["control: smooth deformation", *names]))
        lines = [f"{'change per pixel of':{width}} " + " ".join(f"{name:>16}" for name in self.generators)]
        lines.append(f"{'the whole function':{width}} " + " ".join(f"{value:16.3g}" for value in self.totals))
        lines.append(f"{'floor of interpolation':{width}} " + " ".join(f"{value:16.2g}" for value in self.floors))
        lines.append(f"{'control: smooth deformation':{width}} {self.control:16.3g}")
        lines.append(f"{'against finite differences':{width}} " + " ".join(f"{value:16.1g}" for value in self.check))
        for name, row in zip(names, self.rows, strict=True):
            values = " ".join(f"{a:9.3g} {b:6.0%}" for a, b in zip(row.sizes, row.shares, strict=True))
            lines.append(f"{name:{width}} {values}  {row.cause}".rstrip())
        return "\n".join(lines)


def lie_derivative(
    f: Callable[[Tensor], Any],
    images: Tensor,
    generators: tuple[str, ...] = ("x", "y", "rotation"),
    output: str = "invariant",
    *,
    depth: int | None = None,
    random_state: int = 0,
) -> LieReport:
    """Measure the reaction of f to infinitesimal motions and, for a torch module, what each of its modules contributes.

    Parameters
    ----------
    f : callable
        Function from a tensor to a tensor, differentiable by torch. A module is called in evaluation mode and restored.
    images : (n, c, h, w) tensor
        At least two different images, float32 or float64. They fade to zero towards their borders.
    generators : tuple of {"x", "y", "rotation", "scale"}, default ("x", "y", "rotation")
        Directions of the motion.
    output : {"invariant", "image"}, default "invariant"
        Whether the output stays as it is or moves as an image (n, c, h, w).
    depth : int, optional
        How deep to descend into the modules of f; 1 are the modules that f itself calls. By default down to those that
        call no others.
    random_state : int, default 0
        Seed of the random projections and of the control.

    Returns
    -------
    LieReport

    Notes
    -----
    The derivative of an image at its pixels is the slope of its cubic interpolation, (x[i + 1] - x[i - 1]) / 2. Feature
    maps are continued periodically: the border of a faded image is constant, and a constant map then does not move.
    Derivatives of modules are taken by forward-mode differentiation, and by finite differences where torch has none.
    Contributions are read off backward passes, for 16 random projections of outputs with more than 16 numbers.

    Cost: 16 backward passes, and for each generator two forward passes of f and two of each of its modules.

    Examples
    --------
    >>> images = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> layers = nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1)
    >>> smooth, jagged = (lie_derivative(layer, images, ("x",), "image").totals[0] for layer in layers)
    >>> smooth < 0.2 * jagged
    True
    """
    check_inputs(images, Kind(image=True), Kind(), 0)
    unknown = [name for name in generators if name not in GENERATORS]
    if unknown or not generators:
        raise ValueError(f"generators must be some of {', '.join(GENERATORS)}, got {generators}")
    if output not in ("invariant", "image"):
        raise ValueError(f"output must be 'invariant' or 'image', got {output!r}")
    frame = (images.shape[-2], images.shape[-1])
    images = images * disc_window(frame, min(frame) / 2 - 1, images)
    with evaluation(f):
        given = checked_numbers(f(images.clone()), len(images))
        unit = spread(given.numpy())
        moves = _Motion(frame, output)

        def size(value: Tensor) -> float:
            return float(value.detach().double().flatten(1).square().sum(1).mean().sqrt()) / unit if unit else math.nan

        generator = torch.Generator().manual_seed(int(random_state))
        control = size(_pushed(f, images, moves.deformation(images, generator)))
        totals, floors, checks = [], [], []
        derivatives = {}
        for name in generators:
            tangent = moves.along(images, name)
            whole = _pushed(f, images, tangent) - moves.along_output(given, name)
            derivatives[name] = whole
            totals.append(size(whole))
            floors.append(size(_pushed(f, images, tangent - moves.along(images, name, order=4))))
            moved = _moved_difference(f, images, name, moves) - moves.along_output(given, name)
            checks.append(size(moved - whole) / max(totals[-1], control) if unit else math.nan)
        rows: tuple[LieRow, ...] = ()
        if isinstance(f, nn.Module) and unit:
            rows = _contributions(f, images, derivatives, moves, depth, unit, generator)
    return LieReport(
        generators=tuple(generators),
        totals=tuple(totals),
        floors=tuple(floors),
        control=control,
        discrimination=discrimination(given),
        check=tuple(checks),
        rows=rows,
    )


class _Motion:
    """Derivatives of images, feature maps and tokens along generators."""

    def __init__(self, frame: tuple[int, int], output: str) -> None:
        self.frame, self._output = frame, output

    def velocity(self, name: str, shape: tuple[int, int], like: Tensor) -> Tensor:
        """Velocity (h, w, 2) in pixels of a map of this shape."""
        points = pixel_grid(shape, torch.float64)
        strides = torch.tensor([self.frame[1] / shape[1], self.frame[0] / shape[0]], dtype=torch.float64)
        strides = torch.where(strides >= 1, strides.round(), strides)  # a little smaller: the map has lost its border
        whole = pixel_grid(self.frame, torch.float64)
        reach = whole.square().sum(-1).mean().sqrt()
        if name in ("x", "y"):
            field = torch.tensor([1.0, 0.0] if name == "x" else [0.0, 1.0], dtype=torch.float64).expand_as(points)
        elif name == "rotation":
            field = torch.stack([points[..., 1], -points[..., 0]], dim=-1) * strides.flip(0) / reach
        else:
            field = points * strides / reach
        return (field / strides).to(like)

    def along(self, tensor: Tensor, name: str, order: int = 2) -> Tensor:
        """Derivative of a tensor that moves as a map or as tokens; zeros for any other tensor."""
        shape = grid_shape(tensor, self.frame)
        if shape is None:
            return torch.zeros_like(tensor)
        if tensor.ndim >= 4:
            return _transport(tensor, self.velocity(name, shape, tensor), order)
        first = tensor.shape[1] - shape[0] * shape[1]  # 1 if there is a class token
        maps = tensor[:, first:].mT.unflatten(2, shape)  # (n, d, h, w)
        moved = _transport(maps, self.velocity(name, shape, tensor), order).flatten(2).mT
        return torch.cat([torch.zeros_like(tensor[:, :first]), moved], dim=1)

    def along_output(self, output: Tensor, name: str) -> Tensor:
        if self._output == "invariant":
            return torch.zeros_like(output)
        if output.ndim != 4:
            raise ValueError(f"an output of kind 'image' must be (n, c, h, w), got shape {tuple(output.shape)}")
        return self.along(output, name)

    def deformation(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Derivative of images along a random smooth velocity of one pixel."""
        noise = torch.randn(2, 1, *self.frame, generator=generator, dtype=torch.float64)
        field = smooth(noise, min(self.frame) / 8)[:, 0].movedim(0, -1)  # (h, w, 2)
        return _transport(images, (field / field.square().sum(-1).mean().sqrt()).to(images), 2)


def grid_shape(tensor: Tensor, frame: tuple[int, int]) -> tuple[int, int] | None:
    """Height and width of a tensor that is a feature map (n, ..., h, w) or tokens (n, t, d) on a grid, else None."""
    if tensor.ndim >= 4 and min(tensor.shape[-2:]) > 1:
        return tensor.shape[-2], tensor.shape[-1]
    if tensor.ndim == 3:
        for patch in range(1, min(frame) // 2 + 1):
            rows, columns = frame[0] // patch, frame[1] // patch
            if tensor.shape[1] - rows * columns in (0, 1):
                return rows, columns
    return None


def _transport(maps: Tensor, velocity: Tensor, order: int) -> Tensor:
    """``-(velocity . gradient)`` of maps (n, ..., h, w), by central differences of order 2 or 4, periodic."""

    def difference(axis: int, step: int) -> Tensor:
        return (maps.roll(-step, axis) - maps.roll(step, axis)) / (2 * step)

    slopes = [difference(axis, 1) for axis in (-1, -2)]
    if order == 4:
        slopes = [(4 * near - difference(axis, 2)) / 3 for near, axis in zip(slopes, (-1, -2), strict=True)]
    return -(velocity[..., 0] * slopes[0] + velocity[..., 1] * slopes[1])


def _moved_difference(f: Callable[[Tensor], Any], images: Tensor, name: str, moves: _Motion) -> Tensor:
    """Central difference of f for images that were really moved a little."""
    step = _STEP if images.dtype == torch.float64 else 10 * _STEP
    velocity = moves.velocity(name, moves.frame, images).double()
    points = source_points(torch.eye(3, dtype=torch.float64)[None], moves.frame)[0]
    # Every generator is affine: fit the matrix that has this velocity.
    design = torch.cat([points.reshape(-1, 2), torch.ones(points[..., 0].numel(), 1, dtype=torch.float64)], dim=1)
    algebra = torch.zeros(3, 3, dtype=torch.float64)
    algebra[:2] = torch.linalg.lstsq(design, velocity.reshape(-1, 2)).solution.T
    ahead, behind = (
        checked_numbers(f(warp(images, torch.matrix_exp(sign * step * algebra).to(images))), len(images))
        for sign in (1.0, -1.0)
    )
    return (ahead - behind) / (2 * step)


def _pushed(f: Callable[[Tensor], Any], images: Tensor, tangent: Tensor) -> Tensor:
    """Derivative of f at the images along a tangent."""
    return _derivative(lambda x: [f(x)], [images], [tangent])[0].detach().to("cpu", torch.float64)


def _derivative(function: Callable[..., list[Any]], inputs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """Derivatives of the outputs of a function, by forward-mode differentiation or else by finite differences."""
    try:
        copies = tuple(x.clone() for x in inputs)
        return list(torch.func.jvp(lambda *x: tuple(function(*x)), copies, tuple(tangents))[1])
    except (RuntimeError, NotImplementedError, TypeError):
        largest = max(float(tangent.abs().max()) for tangent in tangents) or 1.0
        precise = inputs[0].dtype == torch.float64
        step = (1e-5 if precise else 3e-3) * max(float(x.abs().max()) for x in inputs) / largest
        ahead, behind = (
            function(*(x + sign * step * tangent for x, tangent in zip(inputs, tangents, strict=True)))
            for sign in (1, -1)
        )
        return [(torch.as_tensor(a) - torch.as_tensor(b)) / (2 * step) for a, b in zip(ahead, behind, strict=True)]


def _contributions(
    network: nn.Module, images: Tensor, derivatives: dict[str, Tensor], moves: _Motion, depth: int | None,
    unit: float, generator: torch.Generator,
) -> tuple[LieRow, ...]:  # fmt: skip
    root = trace(network, images)
    calls = _units(root, depth)
    sensitivities, projections = _sensitivities(network, images, calls, root, generator)
    is_random = projections.shape[2] > _PROJECTIONS
    scale = math.sqrt(len(images)) * unit * math.sqrt(len(projections) if is_random else 1)
    # Entry [r, i] of a projected derivative is its product with projection r, for image i.
    totals = {name: torch.einsum("rid,id->ri", projections, value.flatten(1)) for name, value in derivatives.items()}
    rest = {name: total.clone() for name, total in totals.items()}
    rows = []
    for call, sensitivity in zip(calls, sensitivities, strict=True):
        sizes, shares, own = [], [], {}
        for name in derivatives:
            own[name] = _own_derivative(call, moves, name)
            part = torch.zeros_like(totals[name])
            for weight, value in zip(sensitivity, own[name], strict=True):
                part += torch.einsum("rid,id->ri", weight, value.double().flatten(1))
            rest[name] = rest[name] - part
            sizes.append(float(part.norm()) / scale)
            shares.append(_share(part, totals[name]))
        counts = max(map(abs, shares)) > 0.01 and max(sizes) > _ROUNDING
        cause = _cause(call, own, moves) if counts else ""
        rows.append(LieRow(call.name or NETWORK, type(call.module).__name__, tuple(sizes), tuple(shares), cause))
    outside = [(float(rest[name].norm()) / scale, _share(rest[name], totals[name])) for name in derivatives]
    rows.append(LieRow(OUTSIDE, "", tuple(s for s, _ in outside), tuple(s for _, s in outside), ""))
    return tuple(rows)


def _share(part: Tensor, total: Tensor) -> float:
    size = float(total.square().sum())
    return float((part * total).sum()) / size if size else 0.0


def _units(root: Call, depth: int | None) -> list[Call]:
    """The calls at a depth, and those above it that call no others."""
    if not root.calls:
        return [root]
    found = []
    for call in root.calls:
        found += [call] if not call.calls or depth == 1 else _units(call, None if depth is None else depth - 1)
    return found


def _sensitivities(
    network: nn.Module, images: Tensor, calls: list[Call], root: Call, generator: torch.Generator
) -> tuple[list[list[Tensor]], Tensor]:
    """By call and output tensor, the gradients (r, n, d) of projections of the network's output; the projections."""
    wanted = {id(call): i for i, call in enumerate(root.walk())}
    numbers = [wanted[id(call)] for call in calls]
    outputs: dict[int, list[Tensor]] = {}
    started, stack = [0], []
    handles = []

    def before(module: nn.Module, args: Any) -> None:
        stack.append(started[0])
        started[0] += 1

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        number = stack.pop()
        if number in numbers:
            outputs[number] = floats(output)
            return map_floats(output, Tensor.clone)  # later modules may change it in place
        return None

    for module in network.modules():
        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        with torch.enable_grad():
            result = floats(network(images.clone().requires_grad_()))[0].flatten(1)
            tensors = [tensor for number in numbers for tensor in outputs[number]]
            n, size = result.shape
            if size <= _PROJECTIONS:
                projections = torch.eye(size, dtype=torch.float64)[:, None].expand(size, n, size)
            else:
                projections = torch.randn(_PROJECTIONS, n, size, generator=generator, dtype=torch.float64)
            gradients = [
                torch.autograd.grad(result, tensors, each.to(result), retain_graph=True, allow_unused=True)
                for each in projections
            ]
    finally:
        for handle in handles:
            handle.remove()
    flat = [
        torch.stack([torch.zeros_like(t) if g[j] is None else g[j] for g in gradients]).double().cpu().flatten(2)
        for j, t in enumerate(tensors)
    ]
    counts = iter(flat)
    return [[next(counts) for _ in outputs[number]] for number in numbers], projections


def _own_derivative(call: Call, moves: _Motion, name: str) -> list[Tensor]:
    """The Lie derivative of one module alone, for each of its output tensors."""
    inputs = call.input_tensors
    tangents = [moves.along(tensor, name) for tensor in inputs]
    results = _derivative(lambda *x: call.call_with(list(x)), inputs, tangents)
    pairs = zip(results, call.output_tensors, strict=True)
    return [(result - moves.along(output, name)).detach().cpu() for result, output in pairs]


def _cause(call: Call, own: dict[str, list[Tensor]], moves: _Motion) -> str:
    """Why a module does not commute with shifts."""
    shifts = [name for name in ("x", "y") if name in own]
    inputs, outputs = call.input_tensors, call.output_tensors
    shape = grid_shape(inputs[0], moves.frame) if inputs else None
    if not shifts or shape is None or not outputs:
        return ""
    place = grid_shape(outputs[0], moves.frame)
    inside = own[shifts[0]][0]
    strides = (1, 1) if place is None else tuple(max(1, round(a / b)) for a, b in zip(shape, place, strict=True))
    rolled = [_roll(tensor, strides, moves.frame) for tensor in inputs]
    difference = call.call_with(rolled)[0] - (outputs[0] if place is None else _roll(outputs[0], (1, 1), moves.frame))
    if place is None or min(place) < 6:  # too small to have an inside
        return "position" if float(difference.norm()) > 0.5 * float(inside.norm()) else "border"
    rim = [-(-side // 8) for side in place]
    difference, inside = (_as_map(tensor, place) for tensor in (difference, inside))
    centre = (..., slice(2 * rim[0], -2 * rim[0] or None), slice(2 * rim[1], -2 * rim[1] or None))
    if float(difference[centre].norm()) > 0.1 * float(inside[centre].norm()) > 0:
        return "position"
    squares = inside.square().flatten(0, -3).mean(0)  # (h, w)
    interior = squares[rim[0] : -rim[0], rim[1] : -rim[1]]
    at_rim = (squares.sum() - interior.sum()) / (squares.numel() - interior.numel())
    return "border" if float(at_rim) > 3 * float(interior.mean()) else "aliasing"


def _as_map(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    if tensor.ndim >= 4:
        return tensor
    return tensor[:, tensor.shape[1] - shape[0] * shape[1] :].mT.unflatten(2, shape)


def _roll(tensor: Tensor, steps: tuple[int, ...], frame: tuple[int, int]) -> Tensor:
    shape = grid_shape(tensor, frame)
    if shape is None:
        return tensor
    if tensor.ndim >= 4:
        return tensor.roll(steps, dims=(-2, -1))
    moved = _as_map(tensor, shape).roll(steps, dims=(-2, -1)).flatten(2).mT
    return torch.cat([tensor[:, : tensor.shape[1] - shape[0] * shape[1]], moved], dim=1)
