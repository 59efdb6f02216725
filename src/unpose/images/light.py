"""Background and contrast: how bright the border of an image is, and how its content differs from that.

The *figure* is the content of an image, the *ground* its background.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unpose.images.batch import as_batch, from_batch
from unpose.images.canvas import border_level

_TAIL = 1.0
"""Percentage of the pixels that may exceed the contrast, so that single hot pixels do not count as a figure."""
_RANGE = (1.0, 99.0)
"""Percentiles of the training images that a :class:`Light` states as the range of their grounds and contrasts."""
_MARGIN, _GROUND_MARGIN, _CONTRAST_MARGIN = 0.05, 0.25, 0.4
"""An image is outside of a range only beyond a margin: 0.05 of full scale, or if that is more, a quarter of the width
of the range for grounds and 40 % of the end of the range for contrasts."""
_UNKNOWN_GROUND, _UNKNOWN_CONTRAST = 0.25, 0.7
"""The margins around the medians where the range is not known: of full scale, and as a share of the contrast."""
_MAJORITY = 2 / 3
"""Share of the images that must differ in the same respect before the difference counts as one of the whole set."""
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
    ground_range, contrast_range : tuple of float, optional
        The first and the 99th percentile over the images; None in the files of older versions, which lack them.

    Examples
    --------
    >>> print(Light(ground=0.75, contrast=-0.5, agreement=1.0))
    dark on light (ground 0.75, figure 0.25 of full scale)
    """

    ground: float
    contrast: float
    agreement: float
    ground_range: tuple[float, float] | None = None
    contrast_range: tuple[float, float] | None = None

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
    agreement = float((np.sign(contrast) == np.sign(middle)).mean())
    (low, high), (weak, strong) = np.percentile([ground, contrast], _RANGE, axis=1).T.tolist()
    return Light(float(np.median(ground)), middle, agreement, (low, high), (weak, strong))


def common_light_difference(images: ArrayLike, light: Light) -> str | None:
    """In which respect a clear majority of the images differs in light from others.

    Two thirds of the images must lie outside of the range of the others in the same respect. Images of the same kind
    therefore do not differ, however much their light varies. If the range is not known, only images of the opposite
    polarity on another ground differ. If the others do not share a light, nothing differs.

    Parameters
    ----------
    images : array_like, shape (n, h, w) or (n, h, w, c)
    light : Light
        What the images are compared with.

    Returns
    -------
    str or None
        How many images differ, and in what; None if they do not.

    Examples
    --------
    >>> paper = np.full((3, 9, 9), 0.75)
    >>> paper[:, 3:6, 3:6] = 0.25
    >>> common_light_difference(paper, measure_light(paper))
    >>> common_light_difference(paper, measure_light(1 - paper))
    '3 of 3 images are dark on light and not light on dark'
    """
    if not light.is_common:
        return None
    found = _differences(*ground_and_contrast(images), light)
    if light.ground_range is None or light.contrast_range is None:
        found = dict(list(found.items())[:1])  # the polarity
    respect, which = max(found.items(), key=lambda item: item[1].sum())
    return f"{which.sum():,} of {len(which):,} images {respect}" if which.mean() > _MAJORITY else None


def match_light(images: NDArray, light: Light) -> NDArray:
    """Give the images that differ in light this ground and contrast; the others stay as they are, bit for bit.

    The brightness of an image, the mean of its channels, is changed by a factor and an offset; differences between the
    channels are scaled by the magnitude of the factor, so that hues are kept. Dark figures on a light ground become
    light on dark, if that is what is asked for. In grey images, values beyond the new ground and the new figure are
    noise, and are clipped; colours are clipped to full scale. A constant image becomes all ground.

    Parameters
    ----------
    images : ndarray, shape (n, h, w) or (n, h, w, c)
        Floats, or whole numbers from zero to full scale as :func:`unpose.images.as_batch` takes them.
    light : Light
        Ground and contrast of the result, as shares of full scale. Without its ranges, images are changed only if most
        differ in one respect.

    Returns
    -------
    ndarray, like ``images``
        Of the same type; whole numbers are rounded.

    Examples
    --------
    >>> paper = np.full((1, 9, 9), 0.75)
    >>> paper[:, 3:6, 3:6] = 0.25
    >>> np.unique(match_light(paper, Light(0.0, 1.0, 1.0))).tolist()
    [0.0, 1.0]
    """
    ground, contrast = ground_and_contrast(images)
    found = list(_differences(ground, contrast, light).values())
    if light.ground_range is None or light.contrast_range is None:
        # One image may well differ from a median; of most images, in one respect, that is unlikely.
        found = [which & (which.mean() > _MAJORITY) for which in found]
    different = np.any(found, axis=0)
    ground, contrast = ground[different], contrast[different]
    factor = np.divide(light.contrast, contrast, out=np.zeros_like(contrast), where=np.abs(contrast) > _FLAT)
    per_image = (slice(None), *[None] * (images.ndim - 1))
    matched = images.copy()
    if not different.any():
        return matched
    is_float = np.issubdtype(images.dtype, np.floating)
    selected = images[different] if is_float else from_batch(as_batch(images[different]), channels=images.ndim == 4)
    low, high = sorted((light.ground, light.ground + light.contrast))
    grey = selected
    if images.ndim == 4 and images.shape[-1] > 1:
        grey = selected.mean(axis=-1, keepdims=True)
        low, high = min(low, 0.0), max(high, 1.0)
    changed = (grey - ground[per_image]) * factor[per_image] + light.ground
    changed = changed + (selected - grey) * np.abs(factor)[per_image]
    changed = changed.clip(low, high)
    if not is_float:
        full = 1 if images.dtype == bool else np.iinfo(images.dtype).max
        changed = np.rint(full * changed.clip(0, 1))
    matched[different] = changed
    return matched


def _differences(ground: NDArray, contrast: NDArray, light: Light) -> dict[str, NDArray[np.bool_]]:
    """Which images, (n,), differ in which respect; the first respect is the polarity."""
    sign = -1.0 if light.contrast < 0 else 1.0
    strength = sign * contrast  # positive for the polarity of `light`
    if light.ground_range is None or light.contrast_range is None:
        low, high = light.ground - _UNKNOWN_GROUND, light.ground + _UNKNOWN_GROUND
        weak, strong = (1 - _UNKNOWN_CONTRAST) * abs(light.contrast), np.inf
        is_opposite = (strength < -_MARGIN) & (sign * (ground - light.ground) > _UNKNOWN_GROUND)
    else:
        (low, high), (weak, strong) = light.ground_range, sorted(sign * end for end in light.contrast_range)
        margin = max(_MARGIN, _GROUND_MARGIN * (high - low))
        low, high = low - margin, high + margin
        weak -= max(_MARGIN, _CONTRAST_MARGIN * abs(weak))
        strong += max(_MARGIN, _CONTRAST_MARGIN * abs(strong))
        is_opposite = strength < min(weak, -_MARGIN)
    here, there = ("light on dark", "dark on light") if sign < 0 else ("dark on light", "light on dark")
    return {
        f"are {here} and not {there}": is_opposite,
        "have a lighter background": ground > high,
        "have a darker background": ground < low,
        "have a weaker contrast": (strength < weak) & ~is_opposite,
        "have a stronger contrast": strength > strong,
    }
