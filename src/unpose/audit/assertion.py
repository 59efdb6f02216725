"""One line for tests: fail with a message that names the element, the module and the error."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from unpose.audit.elements import exact_elements, plane_group
from unpose.audit.error import equivariance_error
from unpose.audit.model_audit import audit_model, breaks_between_pixels
from unpose.audit.worlds import OUTPUTS
from unpose.groups import FiniteGroup, Group


def assert_equivariant(
    model: Any,
    group: str | Group = "d4",
    images: ArrayLike | Tensor | None = None,
    *,
    actions: str | Mapping[str, str] | None = None,
    input: str = "image",
    group_axis: int = 2,
    sizes: tuple[int, ...] | None = None,
    tolerance: float | None = None,
    random_state: int = 0,
) -> None:
    """Fail unless a layer or model is equivariant to a group, up to rounding.

    Parameters
    ----------
    model : torch.nn.Module, path of an ONNX file, scikit-learn estimator or callable
        What to test, as for :func:`unpose.audit.audit_model`.
    group : str or Group, default "d4"
        The group.
    images : array or tensor, optional
        Inputs. By default synthetic ones of a shape that the model takes.
    actions : str, or dict of str to str, optional
        How outputs transform. By default this is found from the data.
    input : {"image", "regular", "regular image", "points", "contour", "sphere"}, default "image"
        How the input transforms; layers on feature maps with a group axis take "regular image". On point clouds,
        contours and the sphere, inputs must be given and ``actions`` is "invariant" by default.
    group_axis : int, default 2
        The group axis of the input and of declared outputs.
    sizes : tuple of int, optional
        Further sizes of images to test. By default the three next ones, if no images are given and the model takes
        them.
    tolerance : float, optional
        Largest relative error that passes under elements that only permute pixels. By default it follows from the type
        in which the model computes. Other elements are compared with their floors, whatever the tolerance.
    random_state : int, default 0
        Seed of the synthetic images.

    Raises
    ------
    AssertionError
        If the model is not equivariant, is random, keeps state, mixes the images of a batch, or is constant.

    Examples
    --------
    >>> import torch
    >>> assert_equivariant(torch.nn.AdaptiveAvgPool2d(1), "d4")
    >>> assert_equivariant(torch.nn.Conv2d(1, 1, 3, padding=1), "c4")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: not equivariant to c4: the output (image) has error ... module (network) breaks it...
    """
    if input in OUTPUTS:
        if not isinstance(images, Tensor):
            raise ValueError(f"assert_equivariant on {input!r} needs inputs: give a tensor as images")
        if isinstance(actions, Mapping) and set(actions) != {""}:
            raise ValueError(f"on {input!r} a model has one output; give its action as a string, got {dict(actions)}")
        output = (actions[""] if isinstance(actions, Mapping) else actions) or "invariant"
        report = equivariance_error(model, images, group, output, input=input, random_state=random_state)
        if not report.holds(tolerance) or breaks_between_pixels(report):
            raise AssertionError(f"not equivariant to {group}:\n{report}")
        return
    tried = () if sizes is None and images is not None else sizes
    audit = audit_model(
        model, images, group, actions=actions, input=input, group_axis=group_axis, measure=_needs_floor(group),
        sizes=tried, random_state=random_state,
    )  # fmt: skip
    if tolerance is not None and audit.verdict in ("broken", "equivariant") and audit.worst is not None:
        outputs = {name: replace(entry, tolerance=tolerance) for name, entry in audit.outputs.items()}
        audit = replace(audit, verdict="broken", outputs=outputs)
        between = any(breaks_between_pixels(report) for report in audit.reports.values())
        if all(entry.error <= tolerance for entry in outputs.values()) and not between:
            return
    elif audit.holds:
        return
    raise AssertionError("\n".join([audit.summary(), *audit.notes, *([str(audit.modules)] if audit.modules else [])]))


def _needs_floor(group: str | Group) -> bool:
    """Whether some element needs interpolation, so that errors must be compared with floors."""
    parsed = plane_group(group)
    return not isinstance(parsed, FiniteGroup) or len(exact_elements(parsed)) < len(parsed)
