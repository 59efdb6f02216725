"""Join the graphs of pixels and of features, and diffuse affinities over the result.

Pixels over the orbit are the right distance for shapes, features of a network for photographs; nobody should have to
know which of the two his images are. Each graph is weighted by how clearly it falls into communities, which is measured
without any labels. Two images are then compared by where random walks from them lead, not by their direct distance:
images of one kind that differ much are linked by a chain of others between them (Donoser and Bischof, 2013, Diffusion
processes for retrieval revisited).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unpose.align import Progress
from unpose.align.checkpoints import Arrays, Checkpoints, load_or_compute
from unpose.cluster.assignment import vote_shares
from unpose.cluster.features import (
    STATISTICS,
    FeatureNetwork,
    FeatureSpace,
    cosine_neighbours,
    fit_space,
    orbit_features,
    pose_change,
    sampled_rows,
)
from unpose.cluster.graph import N_NEIGHBOURS, attention_matrix, bandwidths, symmetric_walk
from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.modularity import RESOLUTION, louvain, modularity
from unpose.cluster.pieces import Batch, take
from unpose.compiled import CACHE, in_threads

_SHARPNESS = 8.0
"""Exponent of the ratio of modularities that decides how much each graph counts."""
_CONTINUE = 0.9
"""Probability that a random walk goes on."""
_RESIDUAL = 1e-3
"""Walks end where less than this is left of them."""
_REACH = 100
"""Images that are kept of a walk."""
_POSITIVES = 5
"""Nearest neighbours that are taken to be of the same kind when the space is whitened."""
_RIDGE = 0.1
"""Isotropic share of the covariance of differences between neighbours, so that no direction is amplified too much."""

_BLOCK_BYTES = 2**28
"""Most memory of the differences between neighbours."""
_AUDITED = 16
"""Images whose change under a rotation is measured."""

Graph = tuple[NDArray, NDArray]
"""Indices and distances of neighbours, (n, k) each, nearest first."""


@dataclass(frozen=True)
class JointGraph:
    """Neighbours by diffusion over the joined graphs."""

    indices: NDArray  # (n, k), nearest first
    distances: NDArray  # (n, k)
    pixel_share: float  # of the weight in the joined graph: 1 for pixels alone, 0 for features alone
    whitening: NDArray  # (r, r), of the points of the feature space


def share_of_pixels(pixels: Graph, points: NDArray, rng: np.random.RandomState) -> float:
    """The weight of the neighbours by pixels beside those of points (n, r) of a feature space, between 0 and 1.

    Weights are in proportion to the eighth power of the modularities of the two graphs.
    """
    near = cosine_neighbours(points, None, min(N_NEIGHBOURS, pixels[0].shape[1]))
    ratio = (clarity(pixels, rng) / max(clarity(near, rng), 1e-3)) ** _SHARPNESS
    return float(ratio / (1 + ratio))


def join_graphs(pixels: Graph, points: NDArray, share: float) -> JointGraph:
    """Join the neighbours by pixels, with this weight, with those of points (n, r) of a feature space, and diffuse.

    The space is whitened twice: first with the neighbours in the space itself as pairs of one kind, then with those of
    the joined graph, so that each graph corrects the other.
    """
    k = min(N_NEIGHBOURS, pixels[0].shape[1])
    pixel_weights = attention_matrix(*pixels, k)
    near = cosine_neighbours(points, None, k)

    def whiten_and_join(pairs: NDArray) -> tuple[NDArray, sparse.csr_array]:
        whitening = neighbour_whitening(points, pairs)
        again = attention_matrix(*cosine_neighbours(whitened(points, whitening), None, k), k)
        joined = sparse.csr_array(share * pixel_weights + (1 - share) * again)
        joined.sort_indices()
        return whitening, joined

    _, joined = whiten_and_join(near[0])
    whitening, joined = whiten_and_join(diffused_neighbours(joined, k)[0])
    return JointGraph(*diffused_neighbours(joined, k), share, whitening)


@dataclass(frozen=True)
class FittedFeatures:
    """What is known of the features of fitted images, for the report and for new images."""

    network: str  # its name
    pixel_share: float  # weight of pixels in the joined graph, between 0 and 1
    pose_change: float  # of features under a rotation: 0 not at all, 1 as between two images; NaN without rotations
    space: FeatureSpace
    whitening: NDArray  # (r, r)
    points: NDArray  # (m, r), the fitted images that count
    digest: str = ""  # SHA-256 of the file of the network, "" for one that was not read from a file

    def check(self, network: FeatureNetwork) -> None:
        """Raise a ValueError if new images would be compared by another network, as far as that can be known."""
        if network.digest == self.digest and (network.digest or network.name == self.network):
            return
        recorded = f"SHA-256 {self.digest}" if self.digest else "not a file, or one whose checksum was not recorded"
        given = f"SHA-256 {network.digest}" if network.digest else "not a file"
        raise ValueError(
            f"features must be the network that the images were compared by, {self.network} ({recorded}), got "
            f"{network.name} ({given})"
        )

    @cached_property
    def own_neighbours(self) -> Graph:
        """The nearest of the fitted images among themselves: (m, k)."""
        return cosine_neighbours(self.points, None, N_NEIGHBOURS)

    def votes(self, points: NDArray, labels: NDArray, n_clusters: int) -> tuple[NDArray, Graph]:
        """Share of each cluster in the attention of points (n, r) to fitted images with ``labels`` (m,): (n, K).

        Also returns the nearest fitted images of the points, (n, k).
        """
        near = cosine_neighbours(points, self.points, N_NEIGHBOURS)
        return vote_shares(*near, bandwidths(self.own_neighbours[1]), labels, n_clusters), near

    def notes(self) -> list[str]:
        """What was compared, and by how much the features still depend on pose, in a sentence."""
        pixels = f"{self.pixel_share:.0%}"
        name = "statistics of texture and shape" if self.network == STATISTICS else self.network
        text = f"Images were compared by {name} ({1 - self.pixel_share:.0%}) and by pixels ({pixels})"
        if not math.isnan(self.pose_change):
            text += f"; a rotation changes the features by {self.pose_change:.2f} of the difference between two images"
        return [text + "."]


def fit_features(
    images: Tensor | Batch, network: FeatureNetwork, pixels: Graph, group: str, max_angle: float, device: str,
    rng: np.random.RandomState, progress: Progress | None = None, checkpoints: Checkpoints | None = None,
    largest_share: float = 1.0, limits: Limits = DEFAULT,
) -> tuple[Graph, FittedFeatures | None]:  # fmt: skip
    """Join the neighbours by pixels of images (n, c, h, w) with those by the features of a network over the orbit.

    If pixels deserve more than ``largest_share`` of the weight by the features of one view, which cost little, they are
    left as they are, and there are no features.
    """
    poses = network.poses(group, max_angle)
    if largest_share < 1:
        once = orbit_features(images, network, poses[:1], device, progress)
        if share_of_pixels(pixels, fit_space(once, network.blocks, limits.space_vectors)(once), rng) > largest_share:
            return pixels, None
    rows, vectors, space, points = _points_in_space(images, network, poses, device, progress, checkpoints, limits)
    joint = join_graphs(pixels, points, share_of_pixels(pixels, points, rng))
    turns = len(poses) > 2  # not the identity, or a mirror image, alone
    some = slice(0, _AUDITED)
    change = pose_change(images[rows[some]], vectors[some], network, poses, space, device) if turns else np.nan
    points = whitened(points, joint.whitening)
    fitted = FittedFeatures(network.name, joint.pixel_share, change, space, joint.whitening, points, network.digest)
    return (joint.indices, joint.distances), fitted


def _points_in_space(
    images: Tensor | Batch, network: FeatureNetwork, poses: Tensor, device: str | torch.device,
    progress: Progress | None, checkpoints: Checkpoints | None, limits: Limits,
) -> tuple[NDArray, NDArray, FeatureSpace, NDArray]:  # fmt: skip
    """The feature space of images (n, c, h, w) and their points in it, (n, r); and the images it was fitted to.

    These are rows (m,) with vectors (m, d). The vectors of the others, which may take 50 KB each, are computed and
    projected in blocks of as many, each a checkpoint.
    """
    n, done = len(images), 0

    def vectors_of(rows: NDArray) -> NDArray:
        report = None if progress is None else lambda stage, count, total: progress(stage, done + count, n)
        return orbit_features(take(images, rows) if len(rows) < n else images, network, poses, device, report)

    rows = sampled_rows(n, limits.space_vectors)
    name = "features" if len(rows) == n else "features-sample"
    vectors = load_or_compute(checkpoints, name, lambda: {"features": vectors_of(rows)})["features"]
    space = fit_space(vectors, network.blocks, limits.space_vectors)
    if len(rows) == n:
        return rows, vectors, space, space(vectors)
    points, others, done = np.empty((n, space.basis.shape[1])), np.setdiff1d(np.arange(n), rows), len(rows)
    points[rows] = space(vectors)
    for start in range(0, len(others), len(rows)):
        part = others[start : start + len(rows)]

        def compute(part: NDArray = part) -> Arrays:
            return {"points": space(vectors_of(part))}

        points[part] = load_or_compute(checkpoints, f"features-{start}", compute)["points"]
        done += len(part)
    return rows, vectors, space, points


def clarity(graph: Graph, rng: np.random.RandomState) -> float:
    """How clearly a graph falls into communities: its modularity, between 0 and 1.

    On eight sets of images this ranks the graph of pixels and the graph of features as the share of neighbours of the
    same class does (``docs/benchmarks/features.md``).
    """
    weights = attention_matrix(*graph)
    return max(modularity(weights, louvain(weights, RESOLUTION, rng), RESOLUTION), 1e-3)


def neighbour_whitening(points: NDArray, pairs: NDArray) -> NDArray:
    """The matrix (r, r) that makes differences between points (n, r) and their nearest neighbours (n, k) isotropic.

    Directions in which neighbours differ say little about the kind. This is the within-class covariance normalisation
    of Hatch, Kajarekar and Stolcke (2006), with neighbours in place of classes.
    """
    near, block = pairs[:, :_POSITIVES], max(1, _BLOCK_BYTES // (8 * _POSITIVES * points.shape[1]))
    covariance = np.zeros((points.shape[1],) * 2)
    for start in range(0, len(points), block):
        rows = slice(start, start + block)
        differences = (points[rows, None] - points[near[rows]]).reshape(-1, points.shape[1])
        covariance += differences.T @ differences
    covariance /= near.size
    spread, directions = np.linalg.eigh(covariance)
    spread = np.maximum(spread, 0.0) + _RIDGE * max(float(spread.mean()), 1e-12)
    return (directions / np.sqrt(spread)) @ directions.T


def whitened(points: NDArray, whitening: NDArray) -> NDArray:
    """Points (n, r) after whitening, again of norm one."""
    moved = points @ whitening
    return moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)


def diffused_neighbours(weights: sparse.csr_array, k: int) -> Graph:
    """The k neighbours of each image whose random walks lead to the same images: indices and ``sqrt(2 - 2 cos)``.

    A walk on the symmetric graph (n, n) goes on with probability 0.9; cosines are those of the expected numbers of
    visits, ``(I - 0.9 S)^-1`` with ``S = D^-1/2 W D^-1/2``.
    """
    n = weights.shape[0]
    walk = symmetric_walk(weights)
    links, reach = _arrays(walk), min(n, _REACH)
    nodes, numbers = np.empty((n, reach), np.int64), np.empty((n, reach))
    in_threads(lambda start, stop: _visits(*links, start, stop, nodes, numbers), n)
    rows = sparse.csr_array((numbers.ravel(), nodes.ravel(), np.arange(n + 1) * reach), shape=(n, n))
    rows.sum_duplicates()
    norm = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    rows = sparse.csr_array(sparse.diags_array(1 / norm) @ rows)
    linked = sparse.csr_array(1e-9 * walk)  # images that no walk shares are still neighbours, at the largest distance
    given = (*_arrays(rows), *_arrays(sparse.csr_array(rows.T)), *_arrays(linked))
    indices, cosines = np.full((n, k), -1), np.zeros((n, k))
    in_threads(lambda start, stop: _largest_cosines(*given, start, stop, indices, cosines), n)
    return indices, np.sqrt(np.maximum(2 - 2 * np.minimum(cosines, 1.0), 0.0))


def _arrays(matrix: sparse.csr_array) -> tuple[NDArray, NDArray, NDArray]:
    """The arrays of a sparse matrix for kernels, which are compiled for one type of indices."""
    return matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int64, copy=False), matrix.data


@numba.njit(nogil=True, cache=CACHE)
def _visits(indptr, indices, weights, start, stop, nodes, numbers):  # type: ignore[no-untyped-def]
    """Write the largest expected numbers of visits of the walks from some nodes: nodes and numbers, (n, reach).

    Solves ``(I - 0.9 S) x = e_i`` by pushing residuals along links until all are small. Unused entries are node i, 0.
    """
    n, reach = nodes.shape
    x, residual, waiting = np.zeros(n), np.zeros(n), np.zeros(n, np.bool_)
    queue, touched = np.empty(n, np.int64), np.empty(n, np.int64)
    seen = np.zeros(n, np.bool_)
    for i in range(start, stop):
        head, length, count = 0, 1, 1
        queue[0], residual[i], waiting[i], touched[0], seen[i] = i, 1.0, True, i, True
        while length > 0:
            j = queue[head]
            head, length = (head + 1) % n, length - 1
            waiting[j] = False
            amount = residual[j]
            residual[j] = 0.0
            x[j] += amount
            for e in range(indptr[j], indptr[j + 1]):
                other = indices[e]
                residual[other] += _CONTINUE * weights[e] * amount
                if not seen[other]:
                    seen[other] = True
                    touched[count] = other
                    count += 1
                if residual[other] > _RESIDUAL and not waiting[other]:
                    waiting[other] = True
                    queue[(head + length) % n] = other
                    length += 1
        order = np.argsort(-x[touched[:count]])[:reach]
        nodes[i], numbers[i] = i, 0.0
        for rank in range(len(order)):
            nodes[i, rank], numbers[i, rank] = touched[order[rank]], x[touched[order[rank]]]
        for t in range(count):
            x[touched[t]], residual[touched[t]], seen[touched[t]] = 0.0, 0.0, False


@numba.njit(nogil=True, cache=CACHE)
def _largest_cosines(  # type: ignore[no-untyped-def]
    indptr, columns, values, column_indptr, rows, column_values, link_indptr, links, link_values, start, stop,
    indices, cosines,
):  # fmt: skip
    """Write the largest entries of some rows of ``A A^T + L``, largest first, off the diagonal: (n, k) each.

    ``A`` is given by rows (``indptr, columns, values``) and by columns, ``L`` by rows. Of equal entries the first comes
    first. A row with fewer entries leaves the rest as it is.
    """
    n, k = indices.shape
    total, seen, touched = np.zeros(n), np.zeros(n, np.bool_), np.empty(n, np.int64)
    for i in range(start, stop):
        count = 0
        seen[i] = True  # leaves the diagonal out
        for e in range(indptr[i], indptr[i + 1]):
            for f in range(column_indptr[columns[e]], column_indptr[columns[e] + 1]):
                j = rows[f]
                total[j] += values[e] * column_values[f]
                if not seen[j]:
                    seen[j] = True
                    touched[count] = j
                    count += 1
        for e in range(link_indptr[i], link_indptr[i + 1]):
            j = links[e]
            total[j] += link_values[e]
            if not seen[j]:
                seen[j] = True
                touched[count] = j
                count += 1
        found = 0
        for t in range(count):
            j = touched[t]
            place = found
            while place > 0 and (
                cosines[i, place - 1] < total[j] or (cosines[i, place - 1] == total[j] and indices[i, place - 1] > j)
            ):
                if place < k:
                    indices[i, place], cosines[i, place] = indices[i, place - 1], cosines[i, place - 1]
                place -= 1
            if place < k:
                indices[i, place], cosines[i, place] = j, total[j]
                found = min(found + 1, k)
        for t in range(count):
            total[touched[t]], seen[touched[t]] = 0.0, False
        total[i], seen[i] = 0.0, False
