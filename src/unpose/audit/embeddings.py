"""Whether embeddings keep their neighbours when the images are moved; embeddings relative to anchors."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from unpose.audit.measurement import discrimination
from unpose.audit.orbit import OrbitOutputs, change
from unpose.audit.results import Plain


@dataclass(frozen=True)
class NeighbourReport(Plain):
    """The result of :func:`neighbour_agreement`; ``print`` it to see the table.

    Parameters
    ----------
    group : str
        Name of the group.
    neighbours : int
        Number of nearest neighbours k.
    elements : tuple of k str
        Names of the elements; entry 0 is the identity.
    degrees : (k,) array
        Angles of the rotations among them, NaN for the others.
    exact : (k,) array of bool
        Whether the element permutes pixels without interpolation.
    agreement, agreement_floors : (k,) array
        Mean share of an image's nearest neighbours that stay the same when all images are moved, and when they are
        moved and moved back.
    retrieval, retrieval_floors : (k,) array
        Share of the moved images whose nearest unmoved image is their own, and the same after moving back.
    change, change_floors : (k,) array
        Distance that an embedding moves, relative to the distance of two images.
    control : str
        Name of a transformation outside the group.
    control_agreement, control_retrieval, control_change : float
        The same measures for the control.
    chance : float
        Agreement of unrelated neighbours.
    discrimination : float
        Spread of the embeddings relative to their size; 0 for a constant embedding.

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import orbit_outputs
    >>> images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> report = neighbour_agreement(orbit_outputs(lambda x: x.flatten(1).sort().values, images, "c4"))
    >>> report.agreement.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    group: str
    neighbours: int
    elements: tuple[str, ...]
    degrees: NDArray[np.float64]
    exact: NDArray[np.bool_]
    agreement: NDArray[np.float64]
    agreement_floors: NDArray[np.float64]
    retrieval: NDArray[np.float64]
    retrieval_floors: NDArray[np.float64]
    change: NDArray[np.float64]
    change_floors: NDArray[np.float64]
    control: str
    control_agreement: float
    control_retrieval: float
    control_change: float
    chance: float
    discrimination: float

    def __str__(self) -> str:
        title, head = f"embeddings under {self.group}", f"{self.neighbours} neighbours kept"
        width = max(len("control: " + self.control), len(title), *map(len, self.elements))
        lines = [f"{title:{width}} {head:>18} {'floor':>6} {'finds itself':>13} {'moves by':>9}"]
        for i, name in enumerate(self.elements):
            floor = " exact" if self.exact[i] else f"{self.agreement_floors[i]:6.1%}"
            lines.append(
                f"{name:{width}} {self.agreement[i]:18.1%} {floor} {self.retrieval[i]:13.1%} {self.change[i]:9.3f}"
            )
        lines.append(
            f"{'control: ' + self.control:{width}} {self.control_agreement:18.1%} {'':6} "
            f"{self.control_retrieval:13.1%} {self.control_change:9.3f}"
        )
        lines.append(f"{'by chance':{width}} {self.chance:18.1%}")
        lines.append(f"{'discrimination':{width}} {self.discrimination:18.2g}")
        if self.discrimination < 1e-3:
            lines.append("note: the embedding is nearly constant, so its neighbours mean nothing")
        return "\n".join(lines)


def neighbour_agreement(orbit: OrbitOutputs, neighbours: int | None = None) -> NeighbourReport:
    """Compare the nearest neighbours of embeddings before and after the images are moved.

    Parameters
    ----------
    orbit : OrbitOutputs
        From :func:`orbit_outputs` of a function that returns embeddings (n, ...), which are flattened.
    neighbours : int, optional
        Number of nearest neighbours by cosine, by default a third of the other images and 10 at most.

    Returns
    -------
    NeighbourReport

    Notes
    -----
    ``agreement`` is the mutual k-nearest-neighbour score: neighbours among the embeddings of all images moved alike
    against neighbours among those of the unmoved images. An embedding that turns with the image can keep it at 1;
    ``retrieval``, which looks for moved images among unmoved ones, then is low.

    Cost: n^2 similarities for each element.

    Examples
    --------
    >>> import torch
    >>> from unpose.audit import orbit_outputs
    >>> images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> report = neighbour_agreement(orbit_outputs(lambda x: x - 0.5, images, "c4"))
    >>> report.agreement[1], report.retrieval[1] < 0.5
    (np.float64(1.0), np.True_)
    """
    n = len(orbit.upright)
    if n < 4:
        raise ValueError(f"neighbours need at least 4 images, got {n}")
    count = min(10, (n - 1) // 3) if neighbours is None else int(neighbours)
    if not 1 <= count < n - 1:
        raise ValueError(f"neighbours must be from 1 to {n - 2} for {n} images, got {count}")

    def agreement(before: NDArray, after: NDArray) -> float:
        pairs = zip(nearest(before, count), nearest(after, count), strict=True)
        return float(np.mean([len(np.intersect1d(a, b)) / count for a, b in pairs]))

    def retrieval(before: NDArray, after: NDArray) -> float:
        return float((similarities(after, before).argmax(1) == np.arange(n)).mean())

    kept, kept_floors, control_kept, _ = orbit.read(agreement)
    found, found_floors, control_found, _ = orbit.read(retrieval)
    moved, moved_floors, control_moved, _ = orbit.read(change)
    return NeighbourReport(
        group=orbit.group,
        neighbours=count,
        elements=tuple(row.name for row in orbit.rows),
        degrees=np.array([row.degrees for row in orbit.rows]),
        exact=np.array([row.exact for row in orbit.rows]),
        agreement=kept,
        agreement_floors=kept_floors,
        retrieval=found,
        retrieval_floors=found_floors,
        change=moved,
        change_floors=moved_floors,
        control=orbit.control.name,
        control_agreement=control_kept,
        control_retrieval=control_found,
        control_change=control_moved,
        chance=count / (n - 1),
        discrimination=discrimination(torch.from_numpy(orbit.upright)),
    )


def relative_embedding(features: ArrayLike, anchors: ArrayLike) -> NDArray[np.float64]:
    """Describe embeddings by their cosines to the embeddings of anchor images (Moschella et al. 2023, equation 1).

    Embeddings of two networks for the same images have unrelated axes; relative to the same anchor images they can be
    compared, because no orthogonal map and no scaling of either changes them.

    Parameters
    ----------
    features : (n, d) array
    anchors : (a, d) array
        Embeddings of the anchor images by the same network.

    Returns
    -------
    (n, a) array

    Examples
    --------
    >>> relative_embedding([[2.0, 0.0], [1.0, 1.0]], [[3.0, 0.0]]).round(3).tolist()
    [[1.0], [0.707]]
    """
    checked, of = checked_features(features), checked_features(anchors)
    if checked.shape[1] != of.shape[1]:
        raise ValueError(f"features and anchors must have equal dimensions, got {checked.shape[1]} and {of.shape[1]}")
    return similarities(checked, of)


def similarities(a: NDArray, b: NDArray) -> NDArray[np.float64]:
    """Cosines (n, m) of embeddings (n, ...) and (m, ...); 0 where an embedding is zero."""
    return unit(a) @ unit(b).T


def unit(features: NDArray) -> NDArray[np.float64]:
    """Embeddings (n, ...) flattened and scaled to length 1; zero stays zero."""
    flat = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    scaled: NDArray[np.float64] = flat / np.where(norms > 0, norms, 1)
    return scaled


def nearest(features: NDArray, k: int) -> NDArray[np.int64]:
    """Indices (n, k) of the nearest other embeddings by cosine, in no order."""
    closeness = similarities(features, features)
    np.fill_diagonal(closeness, -np.inf)
    indices: NDArray[np.int64] = np.argpartition(-closeness, k - 1, axis=1)[:, :k]
    return indices


def checked_features(features: ArrayLike) -> NDArray[np.float64]:
    """Check embeddings (n, d) and return them in float64."""
    checked = np.asarray(features, dtype=np.float64)
    if checked.ndim != 2 or 0 in checked.shape:
        raise ValueError(f"features must be (n, d), one embedding per row, got shape {checked.shape}")
    if not np.isfinite(checked).all():
        raise ValueError(f"features hold {int((~np.isfinite(checked)).sum())} values that are NaN or infinite")
    return checked
