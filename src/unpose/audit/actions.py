"""How a group element acts on a tensor: on its pixels, on its group axis, on both, or not at all.

Convention
----------
Images are ``(n, ..., h, w)``, feature maps on a group ``(n, c, order, h, w)``. Element a moves entry b of a group axis
to entry ``product[a, b]``, which is the regular representation. A quarter turn of a non-square image swaps its height
and width. A frame is the (height, width) of the network's input, in whose pixels poses are measured.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unpose.audit.elements import Element
from unpose.groups import NO_ELEMENT, FiniteGroup, Group, inverse, transform
from unpose.images import mirror, pixel_grid, quarter_turn, source_points, warp

KINDS = ("invariant", "image", "regular", "regular image")
PART_KINDS = ("vectors", "vector image", "keypoints", "boxes", "poses")
"""Kinds of outputs whose entries are coordinates: they change by the matrix of the element."""

SPECTRUM = "spectrum"
"""Kind of feature maps that are Fourier transforms of maps."""

ORIGINS = ("centre", "pixel", "corner", "unit")
"""Where coordinates start: the image centre; the centre of the first pixel; the corner of the image; the same, in units
of the image's sides."""

_MOST_ANGLES = 72
"""Entries of an axis that can list angles."""

_OPTIONS = {
    "vectors": ("xy", "yx", "y up"),
    "vector image": ("xy", "yx", "y up"),
    "keypoints": tuple(f"{order} {origin}" for origin in ORIGINS for order in ("xy", "yx")),
    "boxes": tuple(f"{form} {origin}" for origin in ORIGINS for form in ("xyxy", "cxcywh", "xywh")),
    "poses": ("image from canonical", "canonical from image"),
    SPECTRUM: ("fft2", "fft2, shifted", "rfft2"),
}


@dataclass(frozen=True)
class Kind:
    """How a tensor transforms: which axes are pixels, which axis the group permutes, which entries are coordinates."""

    image: bool = False  # whether two axes are rows and columns of pixels: the last two, or those before the last one
    group_axis: int | None = None  # the axis that the group permutes
    # Whether the group axis, or the components of vectors in axis 1, are merged with others into one axis, as its
    # fastest ("inner") or its slowest ("outer") index.
    merged: str = ""
    labels: tuple[int, ...] = ()  # group element of each entry of the group axis; in the order of the group if empty
    channels_last: bool = False  # whether the pixels are axes -3 and -2
    tokens: tuple[int, ...] = ()  # axes along which pixels are listed row by row
    grid: tuple[int, int] = (0, 0)  # height and width of the grid of the tokens
    planes: int = 1  # grids listed one after the other along the axis; negative if the planes are the fastest index
    extra: int = 0  # tokens before those of the grid, such as a class token
    # (axis, direction, offset) of an axis of angles, which go round: a rotation moves its entries in this direction, a
    # mirror takes entry i to offset - i.
    cyclic: tuple[int, ...] = ()
    part: str = ""  # one of PART_KINDS, or SPECTRUM
    option: str = ""  # order and origin of the coordinates, such as "xy centre"

    @property
    def has_pixels(self) -> bool:
        """Whether any axes are pixels."""
        return self.image or bool(self.tokens)

    @property
    def batch_axis(self) -> int:
        """The axis of the inputs; 1 if axis 0 lists the pixels."""
        return 1 if 0 in self.tokens and self.planes == 1 else 0

    def __str__(self) -> str:
        if self.part:
            return f"{self.part}: {self.option}"
        words = ["regular"] if self.group_axis is not None else []
        words += [f"angles in axis {self.cyclic[0]}"] if self.cyclic else []
        words += ["image"] if self.image else ["tokens" if self.planes == 1 else "flat image"] if self.tokens else []
        name = " ".join(words) or "invariant"
        if self.channels_last:
            name += ", channels last"
        if self.group_axis is not None:
            name += f", axis {self.group_axis}" + (f" ({self.merged})" if self.merged else "")
            name += f", order {' '.join(map(str, self.labels))}" if self.labels else ""
        return name


def kind_of(name: str, group: Group, group_axis: int) -> Kind:
    """Parse a kind: one of :data:`KINDS` or :data:`PART_KINDS`, the latter optionally with a colon and an option.

    The kinds with a group axis need a finite group.
    """
    part, _, option = (word.strip() for word in name.partition(":"))
    if part in PART_KINDS:
        option = option or _OPTIONS[part][0]
        if option not in _OPTIONS[part]:
            raise ValueError(f"the option of {part!r} must be one of {', '.join(_OPTIONS[part])}, got {option!r}")
        return Kind(image=part == "vector image", part=part, option=option)
    if name not in KINDS:
        raise ValueError(f"a kind must be one of {', '.join(map(repr, KINDS + PART_KINDS))}, got {name!r}")
    if "regular" not in name:
        return Kind(image="image" in name)
    if not isinstance(group, FiniteGroup):
        raise ValueError(f"kind {name!r} needs a finite group to permute its axis (c4, d4, ...), got {group}")
    return Kind("image" in name, group_axis)


def part_kinds(tensor: Tensor) -> list[Kind]:
    """The kinds of coordinates that the shape of an output (n, ...) allows."""
    last = tensor.shape[-1] if tensor.ndim > 1 else 0
    names = ["vectors", "keypoints"] * (last == 2) + ["boxes"] * (last == 4)
    names += ["vector image"] * (tensor.ndim == 4 and tensor.shape[1] == 2 and min(tensor.shape[-2:]) > 1)
    names += ["poses"] * (tensor.ndim >= 3 and last == 3 and tensor.shape[-2] in (2, 3))
    return [Kind(name == "vector image", part=name, option=option) for name in names for option in _OPTIONS[name]]


def field_kinds(tensor: Tensor, group: Group) -> list[Kind]:
    """Kinds of features that are rarer than maps of numbers: coordinates, vector fields, axes of angles, spectra."""
    shape = tuple(tensor.shape)
    if tensor.is_complex():
        names = _OPTIONS[SPECTRUM] if len(shape) >= 3 and shape[-1] == shape[-2] else ()
        names = ("rfft2",) if len(shape) >= 3 and shape[-1] == shape[-2] // 2 + 1 != shape[-2] else names[:2]
        return [Kind(part=SPECTRUM, option=option) for option in names]
    kinds = part_kinds(tensor)
    if len(shape) == 4 and shape[1] % 2 == 0 and shape[1] > 2 and min(shape[-2:]) > 1:
        kinds += [
            Kind(True, merged=merged, part="vector image", option=option)
            for merged in ("inner", "outer")
            for option in _OPTIONS["vector image"]
        ]
    turns_only = isinstance(group, FiniteGroup) and all(element[:2, :2].det() > 0 for element in group.elements)
    has_turns = not isinstance(group, FiniteGroup) or any(float(each[:2, :2].trace()) < 0 for each in group.elements)
    for axis in range(1, len(shape)):
        if (n := shape[axis]) % 4 == 0 and 8 <= n <= _MOST_ANGLES:
            # Where a mirror takes the angles is free only if turns show that they are angles: otherwise a map that was
            # moved or padded on one side would pass for one. Angles from the x-axis, at or between its ends, go to
            # n / 2 - i or n / 2 - 1 - i.
            offsets = range(1) if turns_only else range(n) if has_turns else (n // 2, n // 2 - 1)
            turns = [(axis, way, offset) for way in (1, -1) for offset in offsets]
            kinds += [Kind(cyclic=turn) for turn in turns]
            if axis < len(shape) - 2 and min(shape[-2:]) > 1:
                kinds += [Kind(True, cyclic=turn) for turn in turns]
    return kinds


def frame_of(inputs: Tensor, takes: Kind) -> tuple[int, int]:
    """The frame of inputs of a kind; (1, 1) if they have no pixels."""
    return (inputs.shape[-2], inputs.shape[-1]) if takes.image else (1, 1)


def check_shape(tensor: Tensor, kind: Kind, order: int, what: str) -> None:
    """Raise a ValueError if a tensor lacks the axes that its kind acts on."""
    needed = 1 + (2 if kind.image else 0) + (kind.group_axis is not None)
    if tensor.ndim < needed:
        raise ValueError(f"{what} of kind '{kind}' must have at least {needed} axes, got shape {tuple(tensor.shape)}")
    if kind.part and not any(kind.part == each.part for each in part_kinds(tensor)):
        raise ValueError(
            f"{what} of shape {tuple(tensor.shape)} cannot be {kind.part}: vectors and keypoints have 2 entries on the "
            "last axis, boxes 4, poses are (..., 3, 3) or (..., 2, 3), vector images (n, 2, h, w)"
        )
    if kind.group_axis is None:
        return
    axes = range(1, tensor.ndim - (2 if kind.image else 0))
    if kind.group_axis % tensor.ndim not in axes or not -tensor.ndim <= kind.group_axis < tensor.ndim:
        raise ValueError(f"{what} of shape {tuple(tensor.shape)} has no group axis {kind.group_axis}: set group_axis")
    if tensor.shape[kind.group_axis] != order and not (kind.merged and tensor.shape[kind.group_axis] % order == 0):
        raise ValueError(
            f"{what} must have {order} entries along group axis {kind.group_axis}, one per element of the group, "
            f"got shape {tuple(tensor.shape)}"
        )


def act(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int], candidate: int = 0) -> Tensor:
    """Apply an element to a tensor, ``g f``.

    ``frame`` is the (height, width) of the image that the tensor was computed from; ``candidate`` selects one of
    ``element.permutations``. Quarter turns and mirrors are exact permutations of pixels. Any other element resamples
    the pixels once, with zeros outside the image.
    """
    if kind.part == SPECTRUM:
        return _move_spectrum(tensor, element, kind.option, frame)
    if kind.group_axis is not None:
        tensor = _permute(tensor, element.permutations[candidate], kind)
    if kind.cyclic:
        tensor = _move_angles(tensor, element, kind)
    for axis in kind.tokens:
        tensor = _move_tokens(tensor, element, kind, axis, frame)
    if kind.image:
        maps = tensor.movedim(-1, -3) if kind.channels_last else tensor
        maps = _move_pixels(maps, element, frame)
        tensor = maps.movedim(-3, -1) if kind.channels_last else maps
    return _move_coordinates(tensor, element, kind, frame) if kind.part else tensor


def _permute(tensor: Tensor, permutation: Tensor, kind: Kind) -> Tensor:
    """Permute the group axis, or the group's part of a merged axis."""
    axis = (kind.group_axis or 0) % tensor.ndim
    source = permutation.to(tensor.device).clamp(min=0)
    if kind.labels:  # the entry that new entry i, which belongs to element labels[i], is read from
        labels = torch.tensor(kind.labels, device=tensor.device)
        source = labels.argsort()[source[labels]]
    if not kind.merged:
        return tensor.index_select(axis, source)
    order = len(source)
    inner = kind.merged == "inner"
    split = tensor.unflatten(axis, (-1, order) if inner else (order, -1))
    return split.index_select(axis + inner, source).flatten(axis, axis + 1)


def _move_angles(tensor: Tensor, element: Element, kind: Kind) -> Tensor:
    """Move the entries of an axis of angles by quarter turns and mirrors; other elements leave it as it is."""
    if element.quarter_turns is None:
        return tensor
    axis, direction, offset = kind.cyclic
    turns, mirrored = element.quarter_turns
    source = torch.arange(tensor.shape[axis]) - direction * turns * tensor.shape[axis] // 4
    source = (offset - source if mirrored else source) % tensor.shape[axis]
    return tensor.index_select(axis, source.to(tensor.device))


def _move_spectrum(tensor: Tensor, element: Element, option: str, frame: tuple[int, int]) -> Tensor:
    """The Fourier transform of the moved map."""
    pixels = (-2, -1)
    if option == "rfft2":
        height = tensor.shape[-2]
        return torch.fft.rfft2(_move_pixels(torch.fft.irfft2(tensor, (height, height)), element, frame))
    shifted = option != "fft2"
    maps = torch.fft.ifft2(torch.fft.ifftshift(tensor, pixels) if shifted else tensor)
    spectrum = torch.fft.fft2(_move_pixels(maps, element, frame))
    return torch.fft.fftshift(spectrum, pixels) if shifted else spectrum


def _move_tokens(tensor: Tensor, element: Element, kind: Kind, axis: int, frame: tuple[int, int]) -> Tensor:
    """Move pixels that are listed along one axis: ``extra`` tokens, then one or several grids."""
    listed = tensor.movedim(axis, -1)
    extra, pixels = listed[..., : kind.extra], listed[..., kind.extra :]
    if kind.planes < 0:
        maps = pixels.unflatten(-1, (*kind.grid, -kind.planes)).movedim(-1, -3)
    else:
        maps = pixels.unflatten(-1, (kind.planes, *kind.grid))
    moved = _move_pixels(maps, element, frame)
    moved = (moved.movedim(-3, -1) if kind.planes < 0 else moved).flatten(-3)
    return torch.cat([extra, moved], -1).movedim(-1, axis)


def _move_coordinates(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int]) -> Tensor:
    """Transform the entries of vectors, keypoints, boxes and poses by the matrix of an element."""
    if element.pose is None:  # a swap of quadrants is no matrix
        return tensor
    pose = element.pose.to(tensor.device, torch.float64)
    swapped = element.quarter_turns is not None and element.quarter_turns[0] % 2 == 1
    after = (frame[1], frame[0]) if swapped else frame
    values = tensor.double()
    if kind.part == "poses":
        bottom = values.new_tensor([[0, 0, 1]]).expand(*values.shape[:-2], 1, 3)
        full = values if tensor.shape[-2] == 3 else torch.cat([values, bottom], -2)  # (..., 3, 3)
        moved = pose @ full if kind.option == "image from canonical" else full @ inverse(pose)
        return moved[..., : tensor.shape[-2], :].to(tensor)
    if kind.part in ("vectors", "vector image"):
        linear = pose[:2, :2] / pose[2, 2]
        change = {"xy": ((1, 0), (0, 1)), "yx": ((0, 1), (1, 0)), "y up": ((1, 0), (0, -1))}[kind.option]
        basis = pose.new_tensor(change)
        matrix = basis @ linear @ basis.mT  # the inverse of a signed permutation is its transpose
        if kind.part == "vectors":
            return (values @ matrix.mT).to(tensor)
        pairs = values.unflatten(1, (-1, 2) if kind.merged == "inner" else (2, -1))
        letters = "ab,ncbhw->ncahw" if kind.merged == "inner" else "ab,nbchw->nachw"
        return torch.einsum(letters, matrix, pairs).flatten(1, 2).to(tensor)
    order, origin = kind.option.split()
    start, unit = _origin(origin, frame, pose)
    new_start, new_unit = _origin(origin, after, pose)

    def moved_points(points: Tensor) -> Tensor:  # (..., 2) as (x, y)
        return transform(pose, (points * unit - start)) / new_unit + new_start / new_unit

    if kind.part == "keypoints":
        points = values if order == "xy" else values.flip(-1)
        moved = moved_points(points)
        return (moved if order == "xy" else moved.flip(-1)).to(tensor)
    first, second = values[..., :2], values[..., 2:]
    if order == "cxcywh":
        low, high = first - second / 2, first + second / 2
    else:
        low, high = first, second if order == "xyxy" else first + second
    a, b = moved_points(low), moved_points(high)
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    parts = {"xyxy": (low, high), "xywh": (low, high - low), "cxcywh": ((low + high) / 2, high - low)}[order]
    return torch.cat(parts, -1).to(tensor)


def _origin(origin: str, frame: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
    """The image centre in pixels from the origin of coordinates, as (x, y), and the unit of length in pixels."""
    size = like.new_tensor([frame[1], frame[0]])
    offset = {"centre": 0 * size, "pixel": (size - 1) / 2, "corner": size / 2, "unit": size / 2}[origin]
    return offset, size if origin == "unit" else torch.ones_like(size)


def valid_mask(tensor: Tensor, element: Element, kind: Kind, frame: tuple[int, int], candidate: int = 0) -> Tensor:
    """Where the values of ``act(tensor, ...)`` can be compared: a bool tensor that broadcasts against the tensor.

    After resampling, pixels are valid inside the disc inscribed in the image if they also come from inside that disc.
    Along the axis of a set of elements that is not closed under products, entries are valid if an element maps to them.
    """
    mask = torch.ones((), dtype=torch.bool)
    if kind.image and not element.is_exact:
        shape = (tensor.shape[-2], tensor.shape[-1])
        source = source_points(_pose_on(element, frame, shape)[None], shape)[0]  # (h, w, 2)
        radius = min(shape) / 2
        mask = (pixel_grid(shape, torch.float64).norm(dim=-1) <= radius) & (source.norm(dim=-1) <= radius)
    if kind.group_axis is not None:
        reached = element.permutations[candidate] != NO_ELEMENT
        axes_after = tensor.ndim - 1 - kind.group_axis % tensor.ndim
        if not kind.merged:
            mask = mask & reached.reshape(-1, *(1,) * axes_after)
    return mask.to(tensor.device)


def round_trip(tensor: Tensor, element: Element, frame: tuple[int, int]) -> Tensor:
    """Move the pixels by an element and then by its inverse; only interpolation changes the result."""
    if element.is_exact or element.pose is None:
        return tensor
    back = Element(element.name, inverse(element.pose))
    return _move_pixels(_move_pixels(tensor, element, frame), back, frame)


def disc_window(shape: tuple[int, int], radius: float, like: Tensor) -> Tensor:
    """Window (h, w): 1 up to three quarters of the radius, 0 beyond the radius, half a cosine between.

    A windowed image can be rotated without losing its corners and has no edge that interpolation would smear.
    """
    distance = pixel_grid(shape, like.dtype, like.device).norm(dim=-1) / radius
    return torch.cos((4 * distance - 3).clamp(0, 1) * math.pi) / 2 + 0.5


def _move_pixels(tensor: Tensor, element: Element, frame: tuple[int, int]) -> Tensor:
    shape = (tensor.shape[-2], tensor.shape[-1])
    if element.pose is None:
        return tensor.roll((shape[0] // 2, shape[1] // 2), dims=(-2, -1))
    if element.quarter_turns is not None:
        turns, mirrored = element.quarter_turns
        return quarter_turn(mirror(tensor) if mirrored else tensor, turns)
    flat = tensor.reshape(len(tensor), -1, *shape)  # (n, all other axes, h, w)
    return warp(flat, _pose_on(element, frame, shape).to(tensor)).reshape(tensor.shape)


def _pose_on(element: Element, frame: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """Convert a pose from pixels of the frame to pixels of a feature map of this shape.

    Lengths are divided by the integer stride nearest to the ratio of the sizes. A map that is only a little smaller
    than the frame is therefore taken to have lost its border, not to have been downsampled.
    """
    if element.pose is None:
        raise ValueError(f"{element.name} has no pose")
    down, across = (round(a / b) if a >= b else 1 / round(b / a) for a, b in zip(frame, shape, strict=True))
    scale = torch.tensor([1 / across, 1 / down, 1.0], dtype=torch.float64)
    return scale[:, None] * element.pose / scale
