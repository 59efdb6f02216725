"""Photographs: a network recognises turns and mirrors by what is shown, where edges and colours do not suffice."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from unpose.discover.descriptors import border, disc, joined, reduced
from unpose.discover.two_sample import Overlap, two_sample_overlap
from unpose.images.imagenet import extra_network, has_extra_network

_SIDE = 64
"""Side in pixels of what the network sees. 112 pixels tell 70 instead of 66 % of CIFAR-10 apart, and take 2.7 times."""
_VARIED = 0.5
"""An image has no background if its border varies by more than this share of what the whole image does."""
_CHUNK = 128
_ORBIT = {"turns": 1, "quarter turn": 1, "half turn": 2, "mirror": -1}
"""The permutation of pixels that stands for a family: a number of quarter turns, or the mirror. It leaves no trace of
resampling, and if all turns hold, so does a quarter turn."""


class PhotographTest:
    """How well the network of the extra ``features`` tells moved from real photographs.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w)
        Images. They are not centred, because nothing in a photograph has a centroid.
    labels : Tensor of shape (n,) or None
        Class of each image, if known.
    random_state : int
        Seed of the halves.
    network : callable, optional
        From images (n, c, 64, 64) in [0, 1] to vectors (n, d); that of the extra by default, if it is installed.

    Examples
    --------
    >>> PhotographTest(torch.zeros(80, 1, 9, 9), None, 0).overlap("mirror") is None
    True
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None,
        random_state: int,
        network: Callable[[Tensor], Tensor] | None = None,
    ):
        self.images, self.labels, self.random_state, self._network = images, labels, random_state, network
        self._features: dict[int, Tensor] = {}

    def overlap(self, family: str) -> Overlap | None:
        """None if a family needs resampling, images show things on a background, or the extra is not installed."""
        has_network = self._network is not None or has_extra_network()
        if family not in _ORBIT or not has_network or self._has_background:
            return None
        real, moved = joined([(self._seen(0),), (self._seen(_ORBIT[family]),)])
        return two_sample_overlap(real, moved, labels=self.labels, random_state=self.random_state)

    @cached_property
    def _has_background(self) -> bool:
        images = reduced(self.images)
        varied = border(images).abs().mean(dim=(1, 2)) > _VARIED * images.abs().mean(dim=(1, 2, 3))
        return bool(varied.double().mean() <= 0.5)

    @cached_property
    def _views(self) -> Tensor:
        """(n, c, 64, 64) in [0, 1], grey outside the largest disc."""
        height, width = self.images.shape[-2:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = self.images[..., top : top + side, left : left + side]
        low, high = square.aminmax()
        square = (square - low) / (high - low) - 0.5  # high > low, because borders vary
        small = functional.interpolate(square, (_SIDE, _SIDE), mode="bilinear", antialias=True)
        return small * disc(_SIDE, _SIDE, small.dtype) + 0.5

    def _seen(self, moved: int) -> Tensor:
        """Features of all images after a permutation of :data:`_ORBIT`, or as they are for 0."""
        if moved not in self._features:
            network = self._network or extra_network("cpu")[0]
            views = self._views.flip(3) if moved < 0 else self._views.rot90(moved, (2, 3))
            self._features[moved] = torch.cat([network(chunk.float()) for chunk in views.split(_CHUNK)])
        return self._features[moved]
