"""Measure the equivariance error of any function, per group element, beside the error of interpolation alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, frame_of, kind_of
from unpose.audit.calls import evaluation
from unpose.audit.elements import control_for, elements_of, order_of, plane_group
from unpose.audit.equivariance_report import EquivarianceReport
from unpose.audit.measurement import (
    Probe,
    check_inputs,
    checked_values,
    discrimination,
    find_kind,
    ratio,
    relative_norm,
    some_inputs,
)
from unpose.audit.precision import measure_precision
from unpose.audit.worlds import OUTPUTS, WorldElement, check_world, world_elements
from unpose.groups import Group


def equivariance_error(
    f: Callable[[Tensor], Any],
    inputs: Tensor,
    group: str | Group,
    output: str | None = "invariant",
    *,
    input: str = "image",
    group_axis: int = 2,
    n_elements: int = 16,
    random_state: int = 0,
    batch_size: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> EquivarianceReport:
    """Measure ``||f(g x) - g f(x)|| / ||g f(x)||`` for the elements g of a group.

    Parameters
    ----------
    f : callable
        Any function from a tensor to a tensor or array with one entry per input. A torch module is measured in
        evaluation mode and then restored. Integers are labels: the error is the share of labels that change.
    inputs : (n, c, h, w) tensor, or (n, c, order, h, w) for ``input="regular image"``
        At least two different inputs, floating point.
    group : str or Group
        Every element of a finite group is measured. For a continuous group, ``n_elements`` random elements are
        measured and those of its quarter turns and mirrors that preserve the height and width of the input.
    output : str or None, default "invariant"
        How the output transforms. "invariant": not at all. "image": as an image, pixels in the last two axes.
        "regular": the entries of ``group_axis`` are permuted according to the product table. "regular image": both.
        "vectors", "keypoints" (last axis 2), "boxes" (last axis 4), "poses" (..., 3, 3) and "vector image"
        (n, 2, h, w): coordinates, which may be followed by a colon and their order and origin, such as
        "keypoints: xy pixel" or "boxes: cxcywh unit". None: found from the data.
    input : {"image", "regular", "regular image", "points", "contour", "sphere"}, default "image"
        How the input transforms. The last three are point clouds (n, k, d), complex contours (n, k) and
        latitude-longitude images (n, c, h, w); their outputs are "invariant" or, in order, "points" or "vectors",
        "contour", "sphere" (see :mod:`unpose.audit.worlds`).
    group_axis : int, default 2
        The group axis of inputs and outputs that have one.
    n_elements : int, default 16
        Number of random elements of a continuous group.
    random_state : int, default 0
        Seed of the random elements.
    batch_size : int, optional
        Largest number of inputs per call of f; all of them by default.
    progress : callable, optional
        Called with a stage, the number of elements done and their total.

    Returns
    -------
    EquivarianceReport
        Errors, interpolation floors, control and discrimination.

    Notes
    -----
    Norms are root sums of squares in float64 over the whole batch, all channels and all pixels.

    Quarter turns and mirrors are exact permutations of pixels; a quarter turn of a non-square image swaps its sides.
    For other elements the input is first multiplied by a window that fades to zero inside the largest disc that no
    element moves out of the image; it is resampled once, and outputs are compared inside a disc. Their floor is the
    change of f(x) when the input is transformed and transformed back, plus, for images, the change of the output when
    it is transformed and transformed back. Both leave the pose unchanged, so the floor is due to interpolation alone.

    The control is outside the group: the mirror or, for groups with mirrors, the first rotation by 180, 90, 45, ...
    degrees that is not in the group, then a stretch by 1.3, then a swap of quadrants. A function that is equivariant
    to the group and to nothing more shows a large error there. Discrimination is the spread of f over the inputs,
    relative to the norm of f.

    The tolerance is 64 times the change of f when its input is rounded once to the type in which f computes, 6 times
    for float16 and bfloat16; f is taken to amplify rounding by a factor of at least one. It is at most 0.1.

    Cost: one call of f per exact element, two for every other element; one for the inputs, one for the control, and two
    on a few inputs for the tolerance.

    Examples
    --------
    >>> images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> equivariance_error(lambda x: x.sum((2, 3)), images, "c4").holds()
    True
    """
    if input in OUTPUTS:
        return _error_in_world(f, inputs, group, output or "invariant", input, n_elements, int(random_state))
    group = plane_group(group)
    takes = kind_of(input, group, group_axis)
    gives = None if output is None else kind_of(output, group, group_axis)
    check_inputs(inputs, takes, gives or Kind(), order_of(group))
    frame = frame_of(inputs, takes)
    elements = elements_of(group, frame, n_elements, torch.Generator().manual_seed(int(random_state)))

    def call(tensor: Tensor) -> dict[str, Tensor]:
        return {"": checked_values(f(tensor), len(tensor))}

    with evaluation(f):
        few = some_inputs(call, inputs)
        precision = measure_precision(lambda tensor: call(tensor)[""], few)
        if gives is None:
            gives = find_kind(call, few, takes, group, frame)
        probe = Probe(
            call, inputs, takes, {"": gives}, group, frame, [*elements, control_for(group)], batch_size, progress
        )
        return probe.report(elements, {"": precision.tolerance("")}, input)[""]


def _error_in_world(
    f: Callable[[Tensor], Any], inputs: Tensor, group: str | Group, output: str, world: str, n_elements: int, seed: int
) -> EquivarianceReport:
    """The report for point clouds, contours and images of the sphere."""
    check_world(inputs, world, output)
    name, elements, control = world_elements(inputs, world, group, n_elements, seed)

    def as_real(tensor: Tensor) -> Tensor:
        return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor

    n_calls = 0

    def call(tensor: Tensor) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        answer = f(tensor.clone())
        return answer if isinstance(answer, Tensor) and answer.is_complex() else checked_values(answer, len(tensor))

    def call_real(tensor: Tensor) -> dict[str, Tensor]:
        given = torch.view_as_complex(tensor.contiguous()) if inputs.is_complex() else tensor
        return {"": as_real(call(given))}

    def error_of(element: WorldElement) -> tuple[float, float, float, NDArray]:
        found, expected = call(element.act(inputs, world)), element.act(base, output)
        if found.shape != expected.shape:
            raise ValueError(
                f"f gives {tuple(base.shape)} for the inputs and {tuple(found.shape)} after '{element.name}', where an "
                f"output of kind {output!r} would be {tuple(expected.shape)}"
            )
        gaps, size = as_real(found - expected).double().flatten(1).norm(dim=1), as_real(expected).double().norm()
        floor, input_floor = 0.0, 0.0
        if element.undo is not None:
            back = element.undo(element.act(inputs, world), world)
            returned = element.undo(element.act(base, output), output)
            floor = relative_norm(call(back) - base, base) + relative_norm(returned - base, base)
            input_floor = relative_norm(back - inputs, inputs)
        by_input = ratio(gaps, size / len(gaps) ** 0.5).detach().cpu().numpy()
        return float(ratio(gaps.norm(), size)), floor, input_floor, by_input

    with evaluation(f), torch.no_grad():
        precision = measure_precision(lambda tensor: call_real(tensor)[""], as_real(inputs))
        base = call(inputs)
        rows, outside = [error_of(element) for element in elements], error_of(control)
    errors, floors, input_floors = np.array([row[:3] for row in rows]).T
    return EquivarianceReport(
        group=name, input=world, output=output, elements=tuple(element.name for element in elements),
        exact=np.array([element.is_exact for element in elements]), errors=errors, floors=floors,
        input_floors=input_floors, by_input=np.stack([row[3] for row in rows]), control=control.name,
        control_error=outside[0], control_floor=outside[1], discrimination=discrimination(as_real(base).double()),
        tolerance=precision.tolerance(""), n_calls=n_calls,
    )  # fmt: skip
