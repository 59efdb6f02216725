"""Background and contrast: how bright the border of an image is, and how its content differs from that.

The *figure* is the content of an image, the *ground* its background.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unpose.images.batch import as_batch
from unpose.images.canvas import border_level

_TAIL = 1.0
"""Percentage of the pixels that may exceed the contrast, so that single hot pixels do not count as a figure."""
_GROUND_DIFFERENCE, _CONTRAST_RATIO = 0.05, 0.6
"""A larger difference of grounds, or a smaller ratio of contrasts, makes an image differ from others."""
_FLAT = 1e-3
"""Contrast, as a share of full scale, below which an image counts as constant."""


@dataclass(frozen=True)
class Light:
    """Background and contrast that images of one kind share.

    Parameters
    ----------
    ground : float
        Brightness of the border, the median over the images.
    contrast : float
        Brightness of the figure minus that of the ground, the median over the images; negative for dark figures.
    agreement : float
        Share of the images whose contrast has this sign.

    Examples
    --------
    >>> print(Light(ground=0.75, contrast=-0.5, agreement=1.0))
    dark on light (ground 0.75, figure 0.25 of full scale)
    """

    ground: float
    contrast: float
    agreement: float

    @property
    def is_common(self) -> bool:
        """Whether at least 90 % of the images agree on what is light and what is dark; photographs of scenes do not."""
        return self.agreement >= 0.9

    def __str__(self) -> str:
        light, dark = ("light", "dark") if self.contrast > 0 else ("dark", "light")
        figure = self.ground + self.contrast
        return f"{light} on {dark} (ground {self.ground:.2f}, figure {figure:.2f} of full scale)"


def ground_and_contrast(images: ArrayLike) -> tuple[NDArray, NDArray]:
    """Brightness of the border of each image, and how far its figure is from that: (n, h, w[, c]) -> (n,) and (n,).

    The ground is the median of the outermost pixels. The contrast is the 99th or the first percentile of the pixels
    minus the ground, whichever is larger in magnitude. Colour channels are averaged.
    """
    grey = as_batch(images).mean(1).numpy()  # (n, h, w)
    ground = border_level(grey)
    dark, light = np.percentile(grey.reshape(len(grey), -1), [_TAIL, 100 - _TAIL], axis=1) - ground
    return ground, np.where(light >= -dark, light, dark)


def measure_light(images: ArrayLike) -> Light:
    """Measure the background and contrast that images share.

    Parameters
    ----------
    images : array_like, shape (n, h, w) or (n, h, w, c)

    Returns
    -------
    Light

    Examples
    --------
    >>> paper = np.full((1, 9, 9), 0.75)
    >>> paper[:, 3:6, 3:6] = 0.25
    >>> str(measure_light(paper))
    'dark on light (ground 0.75, figure 0.25 of full scale)'
    """
    ground, contrast = ground_and_contrast(images)
    middle = float(np.median(contrast))
    return Light(float(np.median(ground)), middle, float((np.sign(contrast) == np.sign(middle)).mean()))


def differs_in_light(images: ArrayLike, light: Light) -> NDArray[np.bool_]:
    """Which images have another ground than this, a much weaker contrast, or one of the opposite sign.

    Parameters
    ----------
    images : array_like, shape (n, h, w) or (n, h, w, c)
    light : Light
        What the images are compared with.

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> differs_in_light(np.pad(np.ones((1, 3, 3)), ((0, 0), (2, 2), (2, 2))), Light(0.0, 0.9, 1.0)).tolist()
    [False]
    """
    ground, contrast = ground_and_contrast(images)
    ratio = contrast / light.contrast if light.contrast else np.ones_like(contrast)
    return (np.abs(ground - light.ground) > _GROUND_DIFFERENCE) | (ratio < _CONTRAST_RATIO)


def match_light(images: NDArray, light: Light) -> NDArray:
    """Give each image this ground and contrast, by a factor and an offset.

    Dark figures on a light ground become light on dark, if that is what is asked for. Values beyond the new ground and
    the new figure are noise, and are clipped. A constant image becomes all ground.

    Parameters
    ----------
    images : ndarray, shape (n, h, w) or (n, h, w, c)
    light : Light
        Ground and contrast of the result.

    Returns
    -------
    ndarray, like ``images``

    Examples
    --------
    >>> paper = np.full((1, 9, 9), 0.75)
    >>> paper[:, 3:6, 3:6] = 0.25
    >>> np.unique(match_light(paper, Light(0.0, 1.0, 1.0))).tolist()
    [0.0, 1.0]
    """
    ground, contrast = ground_and_contrast(images)
    factor = np.divide(light.contrast, contrast, out=np.zeros_like(contrast), where=np.abs(contrast) > _FLAT)
    per_image = (slice(None), *[None] * (images.ndim - 1))
    matched = (images - ground[per_image]) * factor[per_image] + light.ground
    low, high = sorted((light.ground, light.ground + light.contrast))
    return matched.clip(low, high).astype(images.dtype)
