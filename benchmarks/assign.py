"""New images: the votes of their neighbours beside the nearest average, confidences, and images of unseen kinds.

    UNPOSE_DATA=/path/to/arrays python benchmarks/assign.py [--only digits,clothes,...] [--seed 11] [--features auto]
    UNPOSE_DATA=/path/to/arrays python benchmarks/assign.py --unseen 6 [--only ...] [--seed 11] [--features auto]

Two kinds of every set are left out of the fit. Of the others, 65 % of the images are fitted and 35 % are new. "Joint"
is the share of new images that get the cluster that a fit of fitted and new images together gives them; "class" is the
share whose cluster has their class as its most frequent one. ECE is the expected calibration error of the confidence
against "joint", in eight bins of equal size.

``--unseen 6`` measures instead, for six random pairs of kinds that are left out, how far p-values tell them from the
others: "false alarms" is the share of new images of known kinds with a p-value below 0.05, "found" the share of images
of the two kinds left out, AUROC the probability that one of those has a smaller p-value than a new image of a known
kind. "Alone" are the p-values by the distances from the fitted images, which calls of `assign` with at most twelve
images give, "together" those of one call with all of them. Neighbours are searched once, among all images, and the
steps of the estimator are repeated on those that were drawn. "Other mix" are the false alarms among images of known
kinds alone, of which half of the kinds are a fifth as frequent as in the fit, and "few kinds" those if all new images
are of a quarter of the known kinds, averaged over four such quarters. With ``--features auto`` and the extra
`features`, images are compared by pixels and by features, and p-values are those of what counts more; "true classes" is
then the AUROC of two scores for single images that know the classes of the fitted images, the distance of Mahalanobis
to the nearest class (Lee et al., 2018) and that distance minus the one to all images (Ren et al., 2021).
"""

import argparse
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from light import SETS
from unpose import InvariantClustering
from unpose.align import Search, nearest
from unpose.cluster.assignment import (
    crowd_p_values,
    neighbour_distance,
    outlier_p_values,
    share_of_new,
    vote_shares,
)
from unpose.cluster.features import cosine_neighbours, feature_network, fit_space, orbit_features, orbit_poses
from unpose.cluster.graph import N_NEIGHBOURS, bandwidths
from unpose.cluster.joint_graph import join_graphs, share_of_pixels, whitened
from unpose.cluster.light import LIGHT_CONTRAST, normalise_light
from unpose.cluster.neighbours import graph_search, small_images
from unpose.cluster.readout import read_out
from unpose.images import as_batch
from unpose.images.imagenet import EXTRA_NETWORK

IMAGES = {"silhouettes": 240, "characters": 240}


def calibration_error(confidences, right, bins=8):
    parts = np.array_split(np.argsort(confidences, kind="stable"), bins)
    return sum(len(part) * abs(confidences[part].mean() - right[part].mean()) for part in parts) / len(right)


def parts_of(classes, unseen, rng):
    """Rows of the fitted, the new and the unseen images."""
    is_unseen = np.isin(classes, unseen)
    seen = rng.permutation(np.flatnonzero(~is_unseen))
    return *np.split(seen, [int(0.65 * len(seen))]), np.flatnonzero(is_unseen)


def measure(images, classes, features):
    kinds, classes = np.unique(classes, return_inverse=True)
    fitted, new, _ = parts_of(classes, [0, 1], np.random.default_rng(0))
    count = len(kinds) - 2
    model = InvariantClustering(count, features=features).fit(images[fitted])
    joint = clone(model).fit(images[np.concatenate([fitted, new])]).labels_
    table = np.zeros((count, count))
    np.add.at(table, (model.labels_, joint[: len(fitted)]), 1)
    as_joint = linear_sum_assignment(-table)[1]
    most = np.array([np.bincount(classes[fitted][model.labels_ == k]).argmax() for k in range(count)])
    found, nearest = model.assign(images[new]), model.transform(images[new]).argmin(1)
    is_joint = as_joint[found.labels] == joint[len(fitted) :]
    return [
        np.mean(is_joint), np.mean(as_joint[nearest] == joint[len(fitted) :]),
        np.mean(most[found.labels] == classes[new]), np.mean(most[nearest] == classes[new]),
        found.confidences.mean(), calibration_error(found.confidences, is_joint),
    ]  # fmt: skip


# Unseen kinds --------------------------------------------------------------------------------------------------------


def compared(images, features):
    """The nearest half of the images by pixels, vectors (n, d) of the network, and the lengths of its blocks."""
    batch = as_batch(images, dtype=torch.float32)
    small = small_images(normalise_light(batch, "ignore")).movedim(1, -1)
    search = graph_search(Search(group="se2", contrast=LIGHT_CONTRAST["ignore"]), max(batch.shape[-2:]))
    found = nearest(small, len(small) // 2, quick=True, search=search)
    if features == "pixels":
        return found, None, None
    network = feature_network(EXTRA_NETWORK, batch[:16])
    return found, orbit_features(batch, network, orbit_poses("se2")), network.blocks


def among(found, rows, others):
    """The nearest of ``others`` of the images ``rows``: indices into others and distances, (n, 12)."""
    place = np.full(len(found.indices), -1)
    place[others] = np.arange(len(others))
    indices, distances = np.zeros((len(rows), N_NEIGHBOURS), int), np.full((len(rows), N_NEIGHBOURS), np.inf)
    for at, row in enumerate(rows):
        kept = np.flatnonzero(place[found.indices[row]] >= 0)[:N_NEIGHBOURS]
        indices[at, : len(kept)] = place[found.indices[row, kept]]
        distances[at, : len(kept)] = found.distances[row, kept]
    return indices, np.minimum(distances, distances[np.isfinite(distances)].max())


def measure_unseen(found, vectors, blocks, classes, draw):
    """The figures of one pair of kinds that is left out."""
    rng = np.random.default_rng(draw)
    kinds = np.unique(classes)
    unseen = rng.choice(kinds, 2, replace=False)
    fitted, new, foreign = parts_of(classes, unseen, rng)
    rows, n, n_clusters = np.concatenate([new, foreign]), len(new), len(kinds) - 2
    nearest_of = partial(among, found)
    graph, pixels = nearest_of(fitted, fitted), 1.0
    oracles = []
    if vectors is not None:
        space = fit_space(vectors[fitted], blocks)
        points = space(vectors[fitted])
        joint = join_graphs(graph, points, share_of_pixels(graph, points, np.random.RandomState(0)))
        graph, pixels = (joint.indices, joint.distances), joint.pixel_share
        points = whitened(space(vectors), joint.whitening)
        oracles = mahalanobis(space(vectors[fitted]), classes[fitted], space(vectors[rows]))

        def by_features(rows, others):
            return cosine_neighbours(points[rows], None if rows is others else points[others], N_NEIGHBOURS)

        nearest_of = by_features if pixels < 0.5 else nearest_of
    labels = read_out(*graph, n_clusters, np.random.RandomState(0))[0]
    shares = 0.0
    for weight, search in ((pixels, partial(among, found)), (1 - pixels, vectors is not None and by_features)):
        if weight > 0:
            scales = bandwidths(search(fitted, fitted)[1])
            shares = shares + weight * vote_shares(*search(rows, fitted), scales, labels, n_clusters)
    voted = shares.argmax(1)
    own, to_fitted = nearest_of(fitted, fitted)[1], nearest_of(rows, fitted)[1]
    alone = outlier_p_values(neighbour_distance(to_fitted), voted, neighbour_distance(own), labels)

    def together(some):
        batch = rows[some]
        shares_of_new = share_of_new(to_fitted[some], nearest_of(batch, batch)[1])
        of_known = share_of_new(own, nearest_of(fitted, batch)[1])
        crowd = crowd_p_values(shares_of_new, voted[some], of_known, labels)
        return np.minimum(1.0, 2 * np.minimum(alone[some], crowd))

    rare = rng.permutation(np.setdiff1d(kinds, unseen))[: n_clusters // 2]
    other = np.flatnonzero(~np.isin(classes[new], rare) | (rng.random(n) < 0.2))
    figures = []
    for p_values in (alone, together(np.arange(len(rows)))):
        scores = -np.nan_to_num(p_values, nan=1.0)
        figures += [np.mean(p_values[:n] < 0.05), np.mean(p_values[n:] < 0.05), auroc(scores, n)]
    few_kinds = []
    for some in np.array_split(rng.permutation(np.setdiff1d(kinds, unseen)), 4):
        few_kinds.append(np.mean(together(np.flatnonzero(np.isin(classes[new], some))) < 0.05))
    figures += [np.mean(together(other) < 0.05), np.mean(few_kinds)]
    return [*figures, *(auroc(scores, n) for scores in oracles)]


def auroc(scores, n):
    return roc_auc_score(np.arange(len(scores)) >= n, scores)


def mahalanobis(points, classes, others):
    """Squared distances of others to the nearest class of points, and the same minus the distance to all of them."""

    def distances(centred, means):
        covariance = centred.T @ centred / len(centred)
        covariance += 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        root = np.linalg.cholesky(np.linalg.inv(covariance))
        return (((others[:, None] - means) @ root) ** 2).sum(-1).min(1)

    kinds, index = np.unique(classes, return_inverse=True)
    means = np.stack([points[index == k].mean(0) for k in range(len(kinds))])
    nearest = distances(points - means[index], means)
    return nearest, nearest - distances(points - points.mean(0), points.mean(0)[None])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="digits,clothes,silhouettes,characters,plankton")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--features", default="pixels", choices=("pixels", "auto"))
    parser.add_argument("--unseen", type=int, metavar="DRAWS", help="measure how far unseen kinds are recognised")
    options = parser.parse_args()
    columns = ["joint, votes", "joint, average", "class, votes", "class, average", "confidence", "ECE"]
    if options.unseen:
        columns = [f"{what}, {how}" for how in ("alone", "together") for what in ("false alarms", "found", "AUROC")]
        columns += ["false alarms, other mix", "false alarms, few kinds"]
        if options.features == "auto":
            columns += ["AUROC, true classes", "AUROC, true classes, relative"]
    print("| set | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for name in options.only.split(","):
        images, classes = SETS[name](IMAGES.get(name, 420), options.seed)
        if not options.unseen:
            figures = measure(images, classes, options.features)
            cells = [f"{figure:.2f}" for figure in figures]
        else:
            known = compared(images, options.features)
            draws = [measure_unseen(*known, classes, draw) for draw in range(options.unseen)]
            cells = [f"{np.mean(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in zip(*draws, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
