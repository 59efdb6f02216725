"""``group="auto"``: the group is found from the images."""

from typing import Any

import numpy as np

from unpose.discover.symmetry import FEWEST, MOST_USED, Discovery, Progress, discover

AUTO = "auto"
"""What stands for a group that is to be found."""
_FAMILIES = ("turns", "mirror", "half turn", "quarter turn", "scale")


def discover_group(
    images: Any, labels: Any = None, *, random_state: int = 0, progress: Progress | None = None
) -> Discovery:
    """Find the group for ``group="auto"``: :func:`discover` with the transformations that groups are made of.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images, at least 64. Of more than 3,000, a random sample is read; others are not touched.
    labels : array of shape (n,), optional
        Class of each image.
    random_state : int, default 0
        Seed of the sample.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Discovery
        Its ``group``, ``max_angle`` (in degrees) and ``max_scale`` are for a search over poses, its ``finite_group`` is
        for networks, adaptations and audits; ``findings`` say why.

    Examples
    --------
    >>> letters = 0.1 * np.random.default_rng(0).random((120, 16, 16))
    >>> letters[:, 3:13, 5] = letters[:, 12, 5:11] = 1  # the letter L, always upright
    >>> found = discover_group(letters)
    >>> found.group, found.finite_group
    ('translation', 'c1')
    """
    n = len(images)
    if n < FEWEST:
        raise ValueError(
            f"group 'auto' needs at least {FEWEST} images, got {n} (to train a network, the training part alone is "
            "looked at); name a group instead"
        )
    if n > MOST_USED:
        rows = np.sort(np.random.default_rng(random_state).permutation(n)[:MOST_USED])
        images, labels = images[rows], None if labels is None else np.asarray(labels)[rows]
    return discover(images, labels, families=_FAMILIES, random_state=random_state, progress=progress)
