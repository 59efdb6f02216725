"""The pose of each image of a batch, and how answers in the upright frame are carried back to the input's frame."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.groups import area_change, inverse, transform
from unpose.images import source_points, warp

KINDS = ("mask", "boxes", "keypoints", "vectors", "image")


@dataclass(frozen=True)
class Pose:
    """The poses that a canonicalizer finds for n images, with what is known about them.

    Parameters
    ----------
    element : (n, 3, 3) tensor
        ``upright_from_input``: brings each image to its canonical pose. ``warp(images, element)`` is the canonical
        image, if nothing else was asked for.
    value : (n,) tensor
        Score of the pose; larger is better. Its unit depends on the canonicalizer.
    margin : (n,) tensor
        How much larger the score is than that of the best clearly different pose; infinite where there is none.
    gain : (n,) tensor
        How much larger the score is than that of the image left alone. This is what a gate looks at.
    alternatives : (n, a, 3, 3) tensor
        The next best poses, best first.

    Examples
    --------
    >>> eye = torch.eye(3).expand(2, 3, 3)
    >>> zero = torch.zeros(2)
    >>> pose = Pose(eye, zero, zero, zero, eye[:, None])
    >>> len(pose), pose.gated(0.5).element.shape
    (2, torch.Size([2, 3, 3]))
    """

    element: Tensor
    value: Tensor
    margin: Tensor
    gain: Tensor
    alternatives: Tensor

    def __len__(self) -> int:
        return len(self.element)

    def gated(self, threshold: float | Tensor) -> "Pose":
        """The same poses, but the identity where the gain is not above the threshold."""
        identity = torch.eye(3, dtype=self.element.dtype, device=self.element.device)
        moved = (self.gain > threshold)[:, None, None]
        return replace(self, element=torch.where(moved, self.element, identity))

    def best_of(self, index: int) -> Tensor:
        """The pose of rank ``index`` of every image, 0 for the best: (n, 3, 3)."""
        return self.element if index == 0 else self.alternatives[:, index - 1]


def restore(
    answer: Tensor | NDArray, pose: Pose | Tensor, kind: str = "image", *, frame: tuple[int, int] | None = None
) -> Any:
    """Carry answers about canonical images back to the frame of the inputs.

    Parameters
    ----------
    answer : tensor or array
        - "image": (n, c, h, w) tensor or (n, h, w), (n, h, w, c) array of real numbers, resampled once.
        - "mask": the same, with values kept between the smallest and largest of each map, or whole numbers
          (n, h, w) that are read at the nearest pixel.
        - "boxes": (n, k, 4) of ``x0, y0, x1, y1`` in pixels from the top left corner of the image.
        - "keypoints": (n, k, 2) of ``x, y`` in pixels from the centre of the top left pixel.
        - "vectors": (n, k, 2), which have a direction and no place, or a field (n, 2, h, w) tensor of them.
    pose : Pose or (n, 3, 3) tensor
        The poses ``upright_from_input``.
    kind : {"mask", "boxes", "keypoints", "vectors", "image"}, default "image"
        What the answers are.
    frame : (int, int), optional
        Height and width of the input images. Needed for boxes and keypoints; by default maps have this size.

    Returns
    -------
    tensor or array like ``answer``
        For boxes a pair: the smallest axis-parallel boxes that hold the restored ones, and by what factor their area
        grew, (n, k).

    Notes
    -----
    Maps are zero where the canonical image did not show the input, such as the corners of a turned image: there the
    scores of all classes are equal, and ``argmax`` gives the first class. For masks, restore the scores of the classes
    (logits) and take the ``argmax`` afterwards: whole numbers lose more to the interpolation.

    Examples
    --------
    >>> from unpose.groups import parse
    >>> turn = parse("c4").elements[1:2].float()
    >>> image = torch.rand(1, 1, 5, 5)
    >>> torch.equal(restore(warp(image, turn), turn), image)
    True
    >>> restore(torch.tensor([[[4.0, 0.0]]]), turn, "keypoints", frame=(5, 5)).tolist()
    [[[4.0, 4.0]]]
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    is_array = isinstance(answer, np.ndarray)
    tensor = torch.from_numpy(np.ascontiguousarray(answer)) if isinstance(answer, np.ndarray) else answer
    elements = pose.element if isinstance(pose, Pose) else pose
    if tensor.shape[0] != elements.shape[0]:
        raise ValueError(f"answers and poses must be equal in number, got {tensor.shape[0]} and {elements.shape[0]}")
    input_from_upright = inverse(elements.to(tensor.device, torch.float64))
    channels_last = is_array and kind in ("mask", "image") and tensor.ndim == 4
    if channels_last:
        tensor = tensor.movedim(-1, 1)
    restored = _RESTORE[kind](tensor, input_from_upright, frame)
    if channels_last:
        restored = restored.movedim(1, -1)
    if not is_array:
        return restored
    return tuple(part.numpy() for part in restored) if isinstance(restored, tuple) else restored.numpy()


def restore_maps(answer: Tensor, elements: Tensor, kind: str, images: Tensor) -> Tensor:
    """Dense answers (n, c, h, w) to views of images at elements (n, 3, 3), in the frame of the images."""
    check_dense(answer)
    restored: Tensor = restore(answer, elements, kind, frame=(images.shape[-2], images.shape[-1]))
    return restored


def check_dense(answer: Tensor) -> None:
    """Raise an error unless answers are maps (n, c, h, w)."""
    if answer.ndim != 4:
        raise ValueError(f"dense answers must be (n, c, h, w), got shape {tuple(answer.shape)}; leave out restores")


def _restore_image(maps: Tensor, poses: Tensor, frame: tuple[int, int] | None) -> Tensor:
    if maps.ndim not in (3, 4) or not maps.is_floating_point():
        raise ValueError(
            f"maps must be real numbers (n, c, h, w) or (n, h, w), got shape {tuple(maps.shape)} of {maps.dtype}; "
            "kind='mask' takes whole numbers"
        )
    return warp(maps, _on_map(poses, maps, frame).to(maps.dtype))


def _restore_mask(maps: Tensor, poses: Tensor, frame: tuple[int, int] | None) -> Tensor:
    if maps.is_floating_point():
        lowest, highest = maps.amin((-2, -1), keepdim=True), maps.amax((-2, -1), keepdim=True)
        inside = warp(torch.ones_like(maps), _on_map(poses, maps, frame).to(maps.dtype)) > 0.5
        # Cubic interpolation overshoots at edges: within the range of the map, and at the edge of the frame, where a
        # class would otherwise win whose scores are negative in the map.
        return _restore_image(maps, poses, frame).clamp(lowest, highest) * inside
    if maps.ndim != 3:
        raise ValueError(f"masks of whole numbers must be (n, h, w), got shape {tuple(maps.shape)}")
    height, width = maps.shape[-2:]
    points = source_points(_on_map(poses, maps, frame), (height, width))  # (n, h, w, 2)
    column = (points[..., 0] + (width - 1) / 2).round().long()
    row = (points[..., 1] + (height - 1) / 2).round().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    return maps.flatten(1).gather(1, index.flatten(1)).unflatten(1, (height, width)) * inside


def _restore_keypoints(points: Tensor, poses: Tensor, frame: tuple[int, int] | None) -> Tensor:
    _check_last(points, 2, "keypoints")
    height, width = _needed(frame, "keypoints")
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=poses.dtype, device=poses.device)
    return (transform(poses, points.to(poses.dtype) - centre) + centre).to(points.dtype)


def _restore_boxes(boxes: Tensor, poses: Tensor, frame: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    _check_last(boxes, 4, "boxes")
    height, width = _needed(frame, "boxes")
    centre = torch.tensor([width / 2, height / 2], dtype=poses.dtype, device=poses.device)
    x0, y0, x1, y1 = boxes.to(poses.dtype).unbind(-1)
    corners = torch.stack([x0, y0, x1, y0, x1, y1, x0, y1], dim=-1).unflatten(-1, (4, 2))  # (n, k, 4, 2)
    moved = transform(poses, (corners - centre).flatten(1, 2)).unflatten(1, (-1, 4)) + centre
    restored = torch.cat([moved.amin(2), moved.amax(2)], dim=-1)  # (n, k, 4)
    true_area = (x1 - x0) * (y1 - y0) * area_change(poses).abs()[:, None]
    area = (restored[..., 2] - restored[..., 0]) * (restored[..., 3] - restored[..., 1])
    growth = torch.where(true_area > 0, area / true_area, torch.ones_like(area))
    return restored.to(boxes.dtype), growth.to(boxes.dtype)


def _restore_vectors(vectors: Tensor, poses: Tensor, frame: tuple[int, int] | None) -> Tensor:
    linear = poses[:, :2, :2].to(vectors.dtype)
    if vectors.ndim == 4 and vectors.shape[1] == 2:
        return torch.einsum("nij,njhw->nihw", linear, _restore_image(vectors, poses, frame))
    _check_last(vectors, 2, "vectors")
    return vectors @ linear.mT


_RESTORE: dict[str, Any] = {
    "image": _restore_image,
    "mask": _restore_mask,
    "boxes": _restore_boxes,
    "keypoints": _restore_keypoints,
    "vectors": _restore_vectors,
}


def _on_map(poses: Tensor, maps: Tensor, frame: tuple[int, int] | None) -> Tensor:
    """Poses in pixels of the frame, converted to pixels of maps that are smaller or larger by a stride."""
    if frame is None:
        return poses
    height, width = maps.shape[-2:]
    scale = torch.tensor([width / frame[1], height / frame[0], 1.0], dtype=poses.dtype, device=poses.device)
    return scale[:, None] * poses / scale


def _needed(frame: tuple[int, int] | None, kind: str) -> tuple[int, int]:
    if frame is None:
        raise ValueError(f"restoring {kind} needs the height and width of the input images: frame=(h, w)")
    return frame


def _check_last(answer: Tensor, last: int, kind: str) -> None:
    if answer.ndim != 3 or answer.shape[-1] != last or not answer.is_floating_point():
        raise ValueError(
            f"{kind} must be real numbers (n, k, {last}), got shape {tuple(answer.shape)} of {answer.dtype}"
        )
