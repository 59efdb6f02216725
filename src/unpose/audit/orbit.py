"""Call a function once over the orbit of its inputs; the measures of answers and embeddings read what it returned."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, disc_window, round_trip
from unpose.audit.calls import evaluation
from unpose.audit.elements import Element, content_radius, control_for, elements_of
from unpose.audit.measurement import check_inputs, checked_numbers
from unpose.groups import Group, parse

_IMAGE = Kind(image=True)


@dataclass(frozen=True)
class OrbitRow:
    """The outputs of a function for one transformation of its inputs.

    Parameters
    ----------
    name : str
        Name of the transformation.
    degrees : float
        Its angle if it is a rotation, in [0, 360), otherwise NaN.
    exact : bool
        Whether it permutes pixels without interpolation.
    before, after : (n, ...) array
        Outputs for the inputs, and for the transformed inputs.
    returned : (n, ...) array
        Outputs for the inputs transformed and transformed back: they differ from ``before`` by interpolation alone.

    Examples
    --------
    >>> images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> row = orbit_outputs(lambda x: x.mean((2, 3)), images, "c4").rows[1]
    >>> row.name, row.after.shape
    ('turn 90', (3, 1))
    """

    name: str
    degrees: float
    exact: bool
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    returned: NDArray[np.float64]


@dataclass(frozen=True)
class OrbitOutputs:
    """The outputs of a function over the orbits of its inputs: the result of :func:`orbit_outputs`.

    Parameters
    ----------
    group : str
        Name of the group.
    rows : tuple of k OrbitRow
        One for each element; entry 0 is the identity, for which f was called a second time.
    control : OrbitRow
        A transformation outside the group.

    Examples
    --------
    >>> images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> orbit_outputs(lambda x: x.mean((2, 3)), images, "c4").control.name
    'mirror'
    """

    group: str
    rows: tuple[OrbitRow, ...]
    control: OrbitRow

    @property
    def upright(self) -> NDArray[np.float64]:
        """The outputs (n, ...) for the inputs as they were given."""
        return self.rows[0].before

    def subset(self, images: NDArray[np.int64]) -> "OrbitOutputs":
        """The outputs for some of the images, by their positions."""

        def chosen(row: OrbitRow) -> OrbitRow:
            return replace(row, before=row.before[images], after=row.after[images], returned=row.returned[images])

        return OrbitOutputs(self.group, tuple(chosen(row) for row in self.rows), chosen(self.control))

    def read(self, measure: Callable[[NDArray, NDArray], float]) -> tuple[NDArray, NDArray, float, float]:
        """Apply ``measure(before, after)`` to every row.

        Returns the values (k,), their floors (k,) from the round trip, and value and floor of the control.
        """
        values = np.array([measure(row.before, row.after) for row in self.rows])
        floors = np.array([measure(row.before, row.returned) for row in self.rows])
        control = self.control
        return values, floors, measure(control.before, control.after), measure(control.before, control.returned)

    def sensitivity(self) -> tuple[float, float]:
        """Root mean square :func:`change` over all elements but the identity, and its floor."""
        values, floors, _, _ = self.read(change)
        return float(np.sqrt(np.square(values[1:]).mean())), float(np.sqrt(np.square(floors[1:]).mean()))


def orbit_outputs(
    f: Callable[[Tensor], Any], images: Tensor, group: str | Group, *, n_elements: int = 16, random_state: int = 0
) -> OrbitOutputs:
    """Call a function on images, on their transformed copies, and on copies transformed there and back.

    Parameters
    ----------
    f : callable
        Any function from a tensor to a tensor or array of numbers with one entry per input: class scores or embeddings.
        A torch module is called in evaluation mode and then restored.
    images : (n, c, h, w) tensor
        At least two different images, float32 or float64.
    group : str or Group
        Every element of a finite group is used. For a continuous group, ``n_elements`` random elements and its exact
        ones.
    n_elements : int, default 16
        Number of random elements of a continuous group.
    random_state : int, default 0
        Seed of the random elements.

    Returns
    -------
    OrbitOutputs

    Notes
    -----
    As in :func:`equivariance_error`, images fade to zero inside a disc before they are moved by an element that needs
    interpolation; ``before`` then are the outputs for the faded images, so that both sides differ in pose only.

    Cost: one call of f per exact element, two for every other element, and two for the images themselves.

    Examples
    --------
    >>> images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> orbit = orbit_outputs(lambda x: x.mean((2, 3)), images, "c8")
    >>> [row.degrees for row in orbit.rows if row.exact]
    [0.0, 90.0, 180.0, 270.0]
    """
    group = parse(group)
    rows = []
    with evaluation(f):
        for element, before, after, returned in over_orbit(partial(_call, f), images, group, n_elements, random_state):
            if after.shape != before.shape:
                raise ValueError(
                    f"f must return the same shape for transformed images, got {before.shape} and, after "
                    f"'{element.name}', {after.shape}; pool its output, or use equivariance_error with output='image'"
                )
            rows.append(OrbitRow(element.name, _degrees(element), element.is_exact, before, after, returned))
    return OrbitOutputs(group.name, tuple(rows[:-1]), rows[-1])


def over_orbit(
    call: Callable[[Tensor, str], Any], images: Tensor, group: Group, n_elements: int, random_state: int
) -> Iterator[tuple[Element, Any, Any, Any]]:
    """Call a function as ``call(images, description)`` for every element of a group, and last for the control.

    Yields the element and what was returned for images (n, c, h, w), which have faded to zero inside a disc if the
    element needs interpolation, for them transformed, and for them transformed there and back.
    """
    check_inputs(images, _IMAGE, Kind(), 0)
    frame = (images.shape[-2], images.shape[-1])
    elements = elements_of(group, frame, n_elements, torch.Generator().manual_seed(int(random_state)))
    elements.append(control_for(group))
    upright = call(images, "the images as given")
    if resampled := [element for element in elements if not element.is_exact]:
        faded = images * disc_window(frame, content_radius(resampled, frame), images)
        before = call(faded, "the images faded towards their corners")
    for element in elements:
        inputs, outputs = (images, upright) if element.is_exact else (faded, before)
        after = call(act(inputs, element, _IMAGE, frame), f"images transformed by '{element.name}'")
        returned = outputs
        if not element.is_exact and after.shape == outputs.shape:
            returned = call(round_trip(inputs, element, frame), f"images moved by '{element.name}' and back")
        yield element, outputs, after, returned


def spread(outputs: NDArray) -> float:
    """Root mean square distance of outputs (n, ...) of different inputs, the unit for their changes."""
    flat = outputs.reshape(len(outputs), -1)
    variance = np.square(flat - flat.mean(0)).sum(1).mean()
    return float(np.sqrt(2 * variance * len(flat) / max(len(flat) - 1, 1)))


def change(before: NDArray, after: NDArray) -> float:
    """Root mean square distance of outputs (n, ...) before and after, in units of :func:`spread`; NaN if that is 0."""
    difference = (after - before).reshape(len(before), -1)
    unit = spread(before)
    return float(np.sqrt(np.square(difference).sum(1).mean()) / unit) if unit else math.nan


def _call(f: Callable[[Tensor], Any], images: Tensor, what: str) -> NDArray[np.float64]:
    try:
        outputs = f(images.clone())  # f may modify its input in place
    except Exception as error:
        raise ValueError(f"f fails on {what}, of shape {tuple(images.shape)}: {error}") from error
    numbers: NDArray[np.float64] = checked_numbers(outputs, len(images)).numpy()
    return numbers


def _degrees(element: Element) -> float:
    """The angle of a rotation in degrees, NaN for anything else."""
    if element.pose is None:
        return math.nan
    linear, eye = element.pose[:2, :2], torch.eye(2, dtype=torch.float64)
    is_rotation = torch.allclose(linear @ linear.T, eye, atol=1e-9) and torch.det(linear) > 0
    if not is_rotation or element.pose[:2, 2].abs().max() > 1e-9 or element.pose[2, :2].abs().max() > 1e-9:
        return math.nan
    return round(math.degrees(math.atan2(linear[0, 1], linear[0, 0])), 9) % 360
