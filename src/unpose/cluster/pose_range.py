"""The poses that a clustering searches: as given, or found from the images for ``group="auto"``."""

import math
from dataclasses import dataclass

from torch import Tensor

from unpose.align import Progress
from unpose.discover import AUTO, Discovery, discover_group


@dataclass(frozen=True)
class PoseRange:
    """A group and how far its elements reach.

    Parameters
    ----------
    group : str
        Name of a continuous group.
    max_angle : float
        Largest rotation in radians.
    max_scale : float
        Largest factor of scale.
    discovery : Discovery or None, default None
        What the images say about their symmetries, if the group was found from them.

    Examples
    --------
    >>> PoseRange("se2", 0.3, 1.5).notes()
    []
    """

    group: str
    max_angle: float
    max_scale: float
    discovery: Discovery | None = None

    def notes(self) -> list[str]:
        """What was found and why, one sentence for each family of transformations."""
        if self.discovery is None:
            return []
        found = [f"group 'auto': {finding}" for finding in self.discovery.findings]
        return [f"group 'auto': images are compared with {self.discovery.options}.", *found]


def pose_range(
    group: str, max_angle: float, max_scale: float, images: Tensor | None, progress: Progress | None = None
) -> PoseRange:
    """Return the given range, or for the group ``"auto"`` the part of it that the images (n, c, h, w) obey.

    Vectors, which have no pose, are given as None.

    >>> pose_range("so2", 0.5, 1.5, None).group
    'so2'
    """
    if group != AUTO:
        return PoseRange(group, max_angle, max_scale)
    if images is None:
        return PoseRange("translation", max_angle, max_scale)
    found = discover_group(images.movedim(1, -1).numpy(), progress=progress)  # (n, h, w, c)
    return PoseRange(found.group, min(max_angle, math.radians(found.max_angle)), min(max_scale, found.max_scale), found)
