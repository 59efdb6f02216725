"""Figure and ground: how light an image's border is, and how what it shows stands out from it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unpose.images.batch import as_batch
from unpose.images.canvas import border_level

_TAIL = 1.0
"""Per cent of the pixels that may lie beyond the contrast: single hot pixels do not count as a figure."""
_OTHER_GROUND, _WEAK = 0.05, 0.6
"""Difference of grounds, and ratio of contrasts, from which on images count as unlike each other."""
_FLAT = 1e-3
"""Contrast, as a share of full scale, below which an image shows nothing."""


@dataclass(frozen=True)
class Light:
    """How light falls in images of one kind."""

    ground: float  # brightness around the border, the median over the images
    contrast: float  # brightness of the figure less that of the ground, median; negative where figures are dark
    agreement: float  # share of the images whose contrast has this sign

    @property
    def is_common(self) -> bool:
        """Whether nearly all images agree on what is light and what is dark; photographs of scenes do not."""
        return self.agreement >= 0.9

    def __str__(self) -> str:
        light, dark = ("light", "dark") if self.contrast > 0 else ("dark", "light")
        figure = self.ground + self.contrast
        return f"{light} on {dark} (ground {self.ground:.2f}, figure {figure:.2f} of full scale)"


def ground_and_contrast(images: ArrayLike) -> tuple[NDArray, NDArray]:
    """The brightness of each image's border, and how far the figure is from it: (n, h, w[, c]) -> (n,) and (n,).

    The ground is the median of the outermost pixels. The contrast is the 99th percentile of what is lighter than the
    ground, or the first of what is darker, whichever is further from it. Colours count by their mean.
    """
    grey = as_batch(images).mean(1).numpy()  # (n, h, w)
    ground = border_level(grey)
    dark, light = np.percentile(grey.reshape(len(grey), -1), [_TAIL, 100 - _TAIL], axis=1) - ground
    return ground, np.where(light >= -dark, light, dark)


def light_of(images: ArrayLike) -> Light:
    """How light falls in images (n, h, w[, c]) taken together.

    Examples
    --------
    >>> paper = np.full((1, 9, 9), 0.75)
    >>> paper[:, 3:6, 3:6] = 0.25
    >>> str(light_of(paper))
    'dark on light (ground 0.75, figure 0.25 of full scale)'
    """
    ground, contrast = ground_and_contrast(images)
    middle = float(np.median(contrast))
    return Light(float(np.median(ground)), middle, float((np.sign(contrast) == np.sign(middle)).mean()))


def unlike(images: ArrayLike, like: Light) -> NDArray[np.bool_]:
    """Which images have another ground than others, a much weaker contrast, or one the other way round: (n,)."""
    ground, contrast = ground_and_contrast(images)
    ratio = contrast / like.contrast if like.contrast else np.ones_like(contrast)
    return (np.abs(ground - like.ground) > _OTHER_GROUND) | (ratio < _WEAK)


def match_light(images: NDArray, like: Light) -> NDArray:
    """Images whose ground and contrast are those of others, each by a factor and an offset: (n, h, w[, c]) -> the same.

    Dark figures on a light ground become light on dark where the others are. What lies beyond the figure or on the
    ground's far side is noise, and is cut. An image that shows nothing becomes ground.
    """
    ground, contrast = ground_and_contrast(images)
    factor = np.divide(like.contrast, contrast, out=np.zeros_like(contrast), where=np.abs(contrast) > _FLAT)
    each = (slice(None), *[None] * (images.ndim - 1))
    matched = (images - ground[each]) * factor[each] + like.ground
    low, high = sorted((like.ground, like.ground + like.contrast))
    return matched.clip(low, high).astype(images.dtype)
