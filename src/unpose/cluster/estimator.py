"""The scikit-learn estimator: clusters, their averages and the pose of every image, from images at unknown pose."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.metrics import pairwise_distances
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from unpose.align import Progress, Search, align, check_memory
from unpose.align.checkpoints import Checkpoints
from unpose.align.dask_executor import DaskExecutor
from unpose.cluster import saving
from unpose.cluster.additions import append_assigned
from unpose.cluster.assignment import Assignment, neighbour_distance, sparser_factor
from unpose.cluster.averaging import align_to_means, average_groups, warp_in_chunks
from unpose.cluster.copies import content_digests, first_equal
from unpose.cluster.features import STATISTICS, feature_network, missing_network_notes, not_seen
from unpose.cluster.graph import N_NEIGHBOURS, attention_inside, neighbours_of_all, vector_neighbours, weights_of_all
from unpose.cluster.inputs import (
    are_files,
    as_images,
    check_n_classes,
    check_n_clusters,
    count_axes,
    is_channels_first,
    is_image_set,
    read_files,
)
from unpose.cluster.joint_graph import FittedFeatures, fit_features
from unpose.cluster.labels import class_probabilities, known_classes, most_instructive, respect_classes, spread_labels
from unpose.cluster.learned import LEARN, learn_encoder
from unpose.cluster.light import (
    LIGHT_CONTRAST,
    MIN_LOCAL_GAIN,
    bounded,
    check_content,
    evenly_spaced_rows,
    has_content,
    light_notes,
    normalise_light,
)
from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.neighbours import find_neighbours, gain_of_local_contrast, small_images
from unpose.cluster.new_images import assign_new, blocks, voted_labels
from unpose.cluster.pieces import Batch, Folder, as_pieces, normalise_pieces, take
from unpose.cluster.pose_range import PoseRange, pose_range
from unpose.cluster.readout import read_out
from unpose.cluster.resolution import UNSTABLE
from unpose.cluster.rounds import Round
from unpose.cluster.stability import reliability_notes, stability_of_groups, subset_stability
from unpose.cluster.tree import cut_tree
from unpose.compiled import torch_threads
from unpose.groups import parse_continuous
from unpose.images import as_batch, from_batch, onto_one_canvas, smooth
from unpose.images.imagenet import EXTRA_NETWORK, has_extra_network

_FEWEST_WITH_FEATURES = 24
"""For fewer images, the spread of features in the set says too little, and pixels alone are compared."""
_MOST_WITH_STATISTICS = 24_000
"""For more images, neighbours by statistics, which are searched among all pairs, are not searched unasked."""
_LARGEST_SHARE = 0.45
"""Statistics join unasked only if pixels deserve less of the weight; of drawings that both tell apart it is half."""
_RANGE_SAMPLE = 2000
"""Images by which the group is found, if they are read in pieces."""


class InvariantClustering(TransformerMixin, ClusterMixin, BaseEstimator):
    """Cluster images whose pose is unknown: each may be rotated, shifted, scaled or mirrored differently.

    Parameters
    ----------
    n_clusters : int or None, default None
        Exact number of clusters; None finds it from the data (see Notes). With known classes it is the number of
        clusters before those with known images become the classes, and at least the number of classes.
    group : str, default "se2"
        Transformations that do not count as a difference: translation, so2, se2, similarity, affine or perspective,
        each also with ``+mirror``. "auto" finds the group, its largest angle and scale from the images.
    image_shape : (h, w) or (h, w, c), optional
        Shape of the images if ``X`` is ``(n, pixels)``. Rows without it are vectors, which have no pose and are
        clustered by their Euclidean distances.
    max_angle : float, default pi
        Largest rotation of the search in radians.
    max_shift : float, optional
        Largest shift in pixels; a quarter of the larger side by default.
    max_scale : float, default 1.5
        Largest factor of scale.
    light : {"ignore", "local", "keep", "auto"}, default "ignore"
        "ignore" removes brightness, contrast and a linear background; "local" also contrast that varies inside the
        image, such as shadows and reflections; "keep" lets all of them count as differences. "auto" chooses between
        "ignore" and "local" by a sample of the images (see Notes).
    features : "auto", "pixels", str, path, torch module or callable, default "auto"
        What images are compared by. "pixels" compares pixels over the orbit. A network is applied over the orbit, and
        its graph of neighbours is joined with that of the pixels; weights are found without labels (see Notes). It is
        "contour", the outlines of silhouettes; "efficientnet-lite0", which comes with the extra ``unpose[features]``;
        the path of an ``.onnx`` file or of a run of ``unpose train``; a torch module; or a function from images
        (m, h, w) or (m, h, w, c) to vectors (m, d). "statistics" are fixed statistics of texture and shape, without a
        network. "learn" first learns an encoder from the images themselves (:func:`unpose.train.train_unlabelled`),
        which is kept as ``encoder_``. "auto" is the network of the extra if that is installed. Otherwise, for up to
        24,000 images, it is "statistics" where they divide the images clearly better than pixels do, and else "pixels";
        statistics see neither rotations nor mirror images, and are used only if the group has both, with any angle.
        :meth:`save` keeps the checksum of a file, not its path.
    mask : None or "disc", default None
        Pixels that are compared.
    channels_first : bool or None, default None
        Whether images with channels are (n, c, h, w), as in torch, instead of (n, h, w, c). None decides by the shape:
        they are if the second axis is 1, 3 or 4 and the last is longer than 4. Results always have the channels last.
    random_state : int, RandomState or None, default 0
        Seed of the read-out; the same seed gives the same labels for any ``n_jobs`` and ``memory``.
    device : str, default "cpu"
        Where the search runs, such as "cuda".
    n_jobs : int, optional
        Number of CPU threads, as for :class:`unpose.align.Search`.
    memory : int or str, optional
        Memory budget, such as "2GB".

    Attributes
    ----------
    labels_ : (n,) array of int
        Cluster of each image from 0, largest cluster first; -1 for constant images.
    means_ : (K, h, w) or (K, h, w, c) array
        Average of the aligned images of each cluster, at full size.
    standard_errors_ : array like ``means_``
        Standard error of every pixel of the averages.
    poses_ : (n, 3, 3) array
        Bring each image onto the average of its cluster.
    names_ : list of str or None
        Name of each image, if a folder or files were fitted. Not saved.
    confidences_ : (n,) array
        How far an image's cluster is found again in random subsets of 70 % of the images, in [0, 1]: the mean Jaccard
        index of the two clusters. 0 for constant images, and for all if there are fewer than ten images.
    stability_ : float
        Mean adjusted Rand index of the clusters of two such subsets, on the images they share, or after
        :meth:`regroup` of its groups and the clusters of a subset; NaN for fewer than ten images. Clusters below 0.7
        may be slices of a continuum.
    copies_ : (n,) array of int
        The first image with the same content, which may be the image itself: the same pixels, or the same up to
        rotation, shift, scale and light (:mod:`unpose.cluster.copies`). Copies count once: they are not in
        ``weights_``, ``neighbours_`` and ``means_``, and have the label of the first.
    notes_ : list of str
        What a reader of the results must know: too few images, unstable clusters, copies.
    exemplars_ : (K,) array of int
        The image of each cluster that receives most attention from its cluster.
    symmetries_ : (K,) array of int
        Number of poses at which the average looks the same; 1 for an object without symmetry.
    weights_ : (n, n) sparse array
        The attention matrix that the clusters are read from.
    neighbours_ : unpose.align.Neighbours
        The nearest neighbours by pixels. Without features, the attention matrix is computed from them.
    encoder_ : unpose.nn.Network or None
        The encoder that was learnt with ``features="learn"``.
    features_ : unpose.cluster.joint_graph.FittedFeatures or None
        Name of the network, weight of the pixels beside its features, and by how much the features still change under
        a rotation; None if only pixels were compared.
    classes_ : (C,) array of int or None
        The classes that ``y`` contained; None if nothing was known.
    probabilities_ : (n, C) array or None
        Probability of every class for each image, known classes spread over the attention matrix.
    range_ : unpose.cluster.pose_range.PoseRange
        The group, angle and scale that were used; for "auto" also what was found and why, as in ``notes_``.
    light_ : str
        The value of ``light`` that was used.
    references_ : (m, c, h, w) array
        The fitted images that are neither constant nor copies, at the size of the search and without effects of light:
        what new images are compared with. Of images that would take more than 256 MB, an evenly spaced sample.
    n_clusters_range_ : tuple of int
        Smallest and largest number of clusters that random subsets of the images have, or the number that was given.
    n_clusters_, n_iter_ : int
        Number of clusters, and of rounds of attention.
    history_ : list of unpose.cluster.rounds.Round
        Statistics of every round.

    Notes
    -----
    1. Find the twelve nearest neighbours of each image over the whole orbit (:func:`unpose.align.nearest`), on images
       of at most 48 pixels. A small projective deformation is allowed, because two objects of one kind are never
       identical.
    2. Invariant attention: replace images by means of their neighbours while the differences between neighbours look
       like noise (:mod:`unpose.cluster.rounds`).
    3. Compute an attention matrix over the eight nearest, with a bandwidth per image (:mod:`unpose.cluster.graph`).
    4. Read out clusters by modularity (:mod:`unpose.cluster.readout`), at resolution 2 if their number is given, and
       else at the resolution from 0.5 to 8 at which random subsets of the images agree most
       (:mod:`unpose.cluster.resolution`); and once more for random subsets (:mod:`unpose.cluster.stability`).
    5. Alternate between alignment and averaging at full size (:mod:`unpose.cluster.averaging`).

    With a network, its features are averaged over eight rotations (and mirror images, if the group has them), reduced
    to 128 principal directions and whitened (:mod:`unpose.cluster.features`). The graphs of pixels and of features are
    added, with weights in proportion to the eighth power of their modularities, and two images are compared by where
    random walks over the sum lead (:mod:`unpose.cluster.joint_graph`). Clusters are read from that in step 4. Fewer
    than 24 images are compared by pixels alone.

    With ``light="auto"``, the eight nearest neighbours of up to 250 images are searched with and without local
    contrast. "local" is used if it raises the number of neighbours that are mutual by more than 37 %: an image whose
    neighbours share its light is chosen by few of them in return. The same is measured if ``light="ignore"`` gave
    unstable clusters, and ``notes_`` then recommends "local".

    :meth:`report` writes the page of ``unpose cluster``, :func:`unpose.runs.write_report` a run folder with it.

    No step uses true classes, and nothing is tuned per data set. The search for neighbours dominates the cost:
    quadratic with a small factor, nearly linear beyond some thousand images, where a cheaper search selects candidates.

    Examples
    --------
    >>> from unpose.data import posed
    >>> things = np.zeros((3, 20, 20)); things[0, 4:16, 9:11] = 1; things[1, 6:14, 6:14] = 1
    >>> things[2, 5:15, 8:10] = things[2, 13:15, 8:15] = 1
    >>> turned = posed(things, copies=8, max_shift=2.0)
    >>> model = InvariantClustering(n_clusters=3).fit(turned.images)
    >>> len({(a, b) for a, b in zip(turned.sources.tolist(), model.labels_.tolist())})
    3
    """

    classes_: NDArray | None
    copies_: NDArray
    features_: FittedFeatures | None
    encoder_: Any = None  # of features="learn"
    names_: list[str] | None
    _is_vectors: bool
    _has_channels: bool
    means_: NDArray
    poses_: NDArray
    probabilities_: NDArray | None
    range_: PoseRange
    references_: NDArray
    _reference_rows: NDArray | None
    _digests: NDArray | None = None  # (n, 32) bytes, of the pixels of each image; None in models of earlier versions
    _labelled: NDArray  # (n,) bool, images whose class was given, or that of a copy
    _n_fitted: int
    _limits: Limits = DEFAULT

    def __init__(
        self,
        n_clusters: int | None = None,
        *,
        group: str = "se2",
        image_shape: tuple[int, ...] | None = None,
        max_angle: float = math.pi,
        max_shift: float | None = None,
        max_scale: float = 1.5,
        light: str = "ignore",
        features: Any = "auto",
        mask: str | None = None,
        channels_first: bool | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "cpu",
        n_jobs: int | None = None,
        memory: int | str | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.group = group
        self.image_shape = image_shape
        self.max_angle = max_angle
        self.max_shift = max_shift
        self.max_scale = max_scale
        self.light = light
        self.features = features
        self.mask = mask
        self.channels_first = channels_first
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.memory = memory

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        *,
        progress: Progress | None = None,
        checkpoints: Checkpoints | None = None,
        client: Any = None,
    ) -> "InvariantClustering":
        """Find the clusters, their averages and the poses of the images.

        Parameters
        ----------
        X : (n, h, w), (n, h, w, c) or (n, pixels) array, list of arrays (h, w) or (h, w, c), folder, or list of files
            Images, or rows of pixels with ``image_shape``. Pictures of different sizes are scaled to one square canvas
            as on the command line (:mod:`unpose.images.canvas`). Of a folder or files, ``names_`` gives the order, and
            a file that cannot be read is an error: :func:`unpose.read_folder` reads the others, and what it returns is
            taken here, too.
        y : (n,) array of int, optional
            Known classes, -1 for unknown. They are spread over the attention matrix (``probabilities_``), and clusters
            with known images become the classes. Without any -1 it is ignored, as in every clustering of scikit-learn.
        progress : callable, optional
            Called as ``progress(stage, done, total)``.
        checkpoints : Checkpoints, optional
            Stores finished parts, so that an interrupted fit continues; see :mod:`unpose.align.checkpoints`.
        client : distributed.Client, optional
            Searches on the workers of this Dask cluster instead of in this process; the result is the same. It is no
            parameter of the estimator, because an estimator must be copied and pickled, and a connection cannot be.

        Returns
        -------
        InvariantClustering
            The estimator itself.
        """
        self.light_, self._local_gain = "ignore" if self.light == "auto" else self.light, 0.0
        given, folder = self._given(X, fitting=True, pieces=True), getattr(checkpoints, "scratch_folder", None)
        sample = given[evenly_spaced_rows(len(given), _RANGE_SAMPLE)] if isinstance(given, Batch) else given
        self.range_ = pose_range(
            self.group, self.max_angle, self.max_scale, None if self._is_vectors else sample, progress
        )
        batch, shown = self._without_light(given, folder)
        rng = check_random_state(self.random_state)
        n = len(batch)
        known, self._labelled = known_classes(y, n), np.zeros(n, bool)
        if known is not None and self.n_clusters is not None:
            check_n_classes(self.n_clusters, len(known[0]))
        check_content(shown)
        self.features_, self.classes_, self.probabilities_ = None, None, None
        same = self.copies_  # exact copies; near copies are found below
        rows = np.flatnonzero(shown & (same == np.arange(n)))
        check_n_clusters(self.n_clusters, n, len(rows))
        near = np.zeros(0, np.int64)
        search = None if self._is_vectors else self._search(progress, client)
        network = None
        if search is not None and self._compares_features(len(rows)):  # a bad network is refused before the search
            if self.features == LEARN:
                chosen, seed = self.range_, int(rng.randint(2**31))
                self.encoder_ = learn_encoder(
                    take(given, rows), chosen.group, chosen.max_angle, device=self.device, random_state=seed,
                    progress=progress, steps=self._limits.learning_steps,
                )  # fmt: skip
            network = feature_network(self._network(), given[rows[:16]], self.device, self.light_)
        if search is None:
            neighbours, history = vector_neighbours(batch[rows]), list[Round]()
            typical = np.zeros(1) if neighbours is None else neighbour_distance(neighbours.distances)
        else:
            height, width = batch.shape[-2:]
            at_once = min(len(rows), self._limits.aligned_at_once) if isinstance(batch, Batch) else len(rows)
            check_memory(at_once, self.n_clusters or 1, (height, width), batch.shape[1], search)  # of the averages
            if self.light == "auto":
                self._local_gain = gain_of_local_contrast(take(batch, rows), search)
                if self._local_gain > MIN_LOCAL_GAIN:
                    self.light_ = "local"
                    batch, _ = self._without_light(batch, folder)
            found = find_neighbours(take(batch, rows), search, checkpoints, folder, self.n_clusters or 1, self._limits)
            counted = found.first_copies == np.arange(len(rows))
            if not counted.all():
                self.copies_ = same.copy()
                self.copies_[rows] = rows[found.first_copies]
                self.copies_ = self.copies_[same]
                rows, near = rows[counted], rows[~counted]
            neighbours, history, typical = found.neighbours, found.history, found.typical_distances
        if neighbours is None:  # one image
            labels, weights = np.zeros(1, np.int64), sparse.csr_array((1, 1))
            self.stability_, confidences = math.nan, np.zeros(1)
            self.n_clusters_range_ = 1, 1
        else:
            report = progress or (lambda stage, done, total: None)
            report("read out", 0, 1)
            graph = neighbours.indices, neighbours.distances
            if network is not None and search is not None:
                # Statistics that nobody asked for join only where they divide the images more clearly than pixels do.
                unasked = self.features == "auto" and network.statistics
                largest, draws = (_LARGEST_SHARE, np.random.RandomState(0)) if unasked else (1.0, rng)
                with torch_threads(search.n_threads):
                    graph, self.features_ = fit_features(
                        take(batch if network.statistics else given, rows), network, graph, self.range_.group,
                        self.range_.max_angle, self.device, draws, progress, checkpoints, largest, self._limits,
                    )  # fmt: skip
            labels, weights, resolution = read_out(*graph, self.n_clusters, rng, self._limits)
            found_again = subset_stability(*graph, labels, self.n_clusters, resolution, rng, self._limits)
            self.stability_, confidences = found_again.agreement, found_again.confidences
            self.n_clusters_range_ = found_again.n_clusters
            report("read out", 1, 1)
        if known is not None:
            labels, confidences = self._spread(known, labels, confidences, weights, rows)
        self._set_averages(batch, rows, labels, weights, search, checkpoints)
        self.confidences_ = np.zeros(n)
        self.confidences_[rows] = confidences
        self.confidences_ = self.confidences_[self.copies_]
        self._set_poses_of_copies(batch, near, search)
        self.poses_ = self.poses_[same]
        self.weights_ = weights_of_all(weights, rows, n)
        self.neighbours_ = neighbours_of_all(neighbours, rows, n)
        self.history_, self.n_iter_ = history, max(1, len(history))
        if self.light == "ignore" and self.stability_ < UNSTABLE and search is not None:
            self._local_gain = gain_of_local_contrast(take(batch, rows), replace(search, progress=None))
        self._set_references(take(batch, rows), typical)
        return self

    @property
    def notes_(self) -> list[str]:
        """Sentences about how reliable the clusters are: too few images, unstable clusters, light, copies."""
        check_is_fitted(self)
        n_copies = int((self.copies_ != np.arange(len(self.copies_)))[self.labels_ >= 0].sum())
        n_different = int((self.labels_ >= 0).sum()) - n_copies
        notes = reliability_notes(self.stability_, n_different, n_copies, self.n_clusters_range_)
        by_network = self.features_ is not None and self.features_.network != STATISTICS
        if self.stability_ < UNSTABLE and not self._is_vectors and self.features == "auto" and not by_network:
            notes += missing_network_notes()
        if self.features_ is not None:
            notes += self.features_.notes()
            lost = not_seen(self.features_.network, self.range_.group, self.range_.max_angle)
            if lost:
                notes.append(
                    f"These features do not see {' and '.join(lost)}, which count as differences in the group "
                    f"{parse_continuous(self.range_.group).name}."
                )
        if self.classes_ is not None and self.n_clusters not in (None, self.n_clusters_):
            notes.append(
                f"With the known classes there are {self.n_clusters_} groups; {self.n_clusters} were asked for."
            )
        return notes + light_notes(self.light, self._local_gain) + self.range_.notes()

    def transform(self, X: ArrayLike) -> NDArray:
        """Orbit distance of each image to every average, (n, K); infinite for constant images."""
        return self.place(X)[0]

    def place(self, X: ArrayLike, *, progress: Progress | None = None) -> tuple[NDArray, NDArray]:
        """Orbit distance of each image to every average, (n, K), and the pose that brings it there, (n, K, 3, 3).

        Constant images have infinite distances and identity poses.
        """
        check_is_fitted(self)
        batch, shown = self._without_light(self._given(X, fitting=False, pieces=True))
        poses = np.tile(np.eye(3), (len(batch), self.n_clusters_, 1, 1))
        if self._is_vectors:
            return pairwise_distances(batch[:, 0, 0].numpy(), self.means_), poses
        distances = np.full((len(batch), self.n_clusters_), np.inf)
        for rows in blocks(batch, np.flatnonzero(shown)):
            images, means = batch[rows].movedim(1, -1), self._means_with_channels()
            found = align(images, means, every=True, search=self._search(progress))
            distances[rows], poses[rows] = found.distances, found.poses
        return distances, poses

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each image by the votes of its nearest fitted images, (n,); -1 for constant images."""
        check_is_fitted(self)
        return voted_labels(self, self._given(X, fitting=False, pieces=True))

    def assign(self, X: ArrayLike, *, progress: Progress | None = None) -> Assignment:
        """Assign new images to the clusters, with confidences, outliers and poses.

        The nearest fitted images of each image are searched as in :meth:`fit`, and vote with the weights of attention.
        Poses are those onto the average of the cluster. The p-values of more than twelve images depend on the images
        that are assigned together: many that are nearer to each other than to fitted images are of an unseen kind.

        Parameters
        ----------
        X : like that of :meth:`fit`
            New images.
        progress : callable, optional
            Called as ``progress(stage, done, total)``.

        Returns
        -------
        Assignment
            Labels, confidences, p-values that are small for images of none of the clusters, and poses.
        """
        check_is_fitted(self)
        return assign_new(self, self._given(X, fitting=False, pieces=True), progress).assignment

    def partial_fit(self, X: Any, y: object = None, *, progress: Progress | None = None) -> "InvariantClustering":
        """Add images that arrive later: assign them as :meth:`assign` does, and append them to the fitted images.

        The first call is a :meth:`fit`. Later calls append to ``labels_``, ``confidences_``, ``poses_``, ``copies_``,
        ``neighbours_``, ``weights_``, ``probabilities_`` and ``names_``, and set ``added_`` to the assignment of the
        new images. An image with the same pixels as an earlier one is a copy of it, which counts once; copies up to
        pose or light are found by a :meth:`fit` only. Clusters, averages and ``references_`` stay; :meth:`regroup` with
        all images computes new averages.

        Parameters
        ----------
        X : like that of :meth:`fit`
            New images.
        y : ignored
            Present for the conventions of scikit-learn; the first call passes it to :meth:`fit`.
        progress : callable, optional
            Called as ``progress(stage, done, total)``.

        Returns
        -------
        InvariantClustering
            The estimator itself.
        """
        if not hasattr(self, "references_"):
            return self.fit(X, y, progress=progress)
        X, names = self._named(X, fitting=False)
        given = self._given(X, fitting=False, pieces=True)
        new = assign_new(self, given, progress)
        append_assigned(self, new, names, content_digests(given))
        self.added_ = new.assignment
        return self

    def cut(self, n_clusters: int) -> NDArray:
        """Labels (n,) of another number of clusters, without a new fit: unions or parts of the fitted clusters.

        Clusters that attend to each other most are merged first, and clusters that fall apart most clearly are split
        first (:mod:`unpose.cluster.tree`). -1 for constant images.

        Parameters
        ----------
        n_clusters : int
            Number of clusters, from 1 to the number of images that are neither constant nor copies.

        Returns
        -------
        (n,) array of int
            Clusters from 0, largest first.
        """
        rows, weights = self._counted_graph()
        labels = np.full(len(self.labels_), -1)
        labels[rows] = cut_tree(weights, self.labels_[rows], n_clusters, check_random_state(0), self._limits)
        return labels[self.copies_]

    def regroup(self, X: ArrayLike, labels: ArrayLike, *, progress: Progress | None = None) -> "InvariantClustering":
        """Replace the clusters by given ones, such as those that a person made: new averages, poses and exemplars.

        The attention matrix stays, and ``probabilities_``, which are those of the classes in ``y``. Unless the clusters
        are those that there were, ``confidences_`` and ``stability_`` say how far the new ones are found again in
        random subsets of the images that are read out with as many clusters. A copy gets the label of the first image
        with the same content, and constant images stay in no cluster.

        Parameters
        ----------
        X : array, folder or list of files
            The images that were fitted.
        labels : (n,) array of int
            Cluster of each image, 0 to K - 1, each with at least one image that is neither constant nor a copy.
        progress : callable, optional
            Called as ``progress(stage, done, total)``.

        Returns
        -------
        InvariantClustering
            The estimator itself.
        """
        rows, weights = self._counted_graph()
        batch, _ = self._without_light(self._given(X, fitting=False, pieces=True))
        given = np.asarray(labels)
        if given.shape != self.labels_.shape or len(batch) != len(given) or given.dtype.kind not in "iu":
            raise ValueError(
                f"labels must be {len(self.labels_)} integers, one for each image that was fitted, got {given.dtype} "
                f"of shape {given.shape} for {len(batch)} images"
            )
        counted = given[rows]
        if not np.array_equal(np.unique(counted), np.arange(counted.max() + 1)):
            raise ValueError(
                "labels must be 0 to K - 1, each of at least one image that is neither constant nor a copy, got "
                f"{np.unique(counted)[:20].tolist()}"
            )
        search = None if self._is_vectors else self._search(progress)
        pairs = np.unique(np.stack([counted, self.labels_[rows]]), axis=1)
        if not pairs.shape[1] == counted.max() + 1 == self.n_clusters_:  # other clusters, not other numbers of the same
            found_again = stability_of_groups(weights, counted, check_random_state(0), self._limits)
            self.stability_, self.confidences_ = found_again.agreement, np.zeros(len(given))
            self.confidences_[rows] = found_again.confidences
            self.confidences_ = self.confidences_[self.copies_]
        self._set_averages(batch, rows, counted, weights, search, None)
        self.n_clusters_range_ = self.n_clusters_, self.n_clusters_
        copies = np.flatnonzero((self.copies_ != np.arange(len(given))) & (self.labels_ >= 0))
        self._set_poses_of_copies(batch, copies, search)
        return self

    def suggest(self, n_images: int) -> NDArray:
        """The images whose class would teach most about the others, most instructive first: (m,) indices.

        They reach as many uncertain images as possible over the attention matrix, beyond those that known classes
        already reach. Label them, pass the labels to ``fit`` as ``y``, and ask again.

        Parameters
        ----------
        n_images : int
            How many images; fewer are returned if there are no more.

        Returns
        -------
        (m,) array of int
            Indices of images.
        """
        rows, weights = self._counted_graph()
        known, uncertainty = np.flatnonzero(self._labelled[rows]), np.ones(len(rows))
        if self.probabilities_ is not None and self.probabilities_.shape[1] > 1:  # one class says nothing of others
            uncertainty = 1 - self.probabilities_[rows].max(1)
        return rows[most_instructive(weights, known, uncertainty, n_images)]

    def _counted_rows(self) -> NDArray:
        """The images that are neither constant nor copies, (m,)."""
        return np.flatnonzero((self.labels_ >= 0) & (self.copies_ == np.arange(len(self.labels_))))

    def _counted_graph(self) -> tuple[NDArray, sparse.csr_array]:
        """The images that are neither constant nor copies, (m,), and the attention matrix among them."""
        check_is_fitted(self)
        rows = self._counted_rows()
        weights = sparse.csr_array(sparse.csr_array(self.weights_)[rows][:, rows])
        weights.sort_indices()
        return rows, weights

    def _compares_features(self, n_images: int) -> bool:
        """Whether images are compared by the features of a network, too, or by statistics."""
        if n_images < _FEWEST_WITH_FEATURES or self.features == "pixels":
            return False
        if self.features != "auto" or has_extra_network():
            return True
        lost = not_seen(STATISTICS, self.range_.group, self.range_.max_angle)
        return not lost and n_images <= _MOST_WITH_STATISTICS

    def _network(self) -> Any:
        """What :func:`unpose.cluster.features.feature_network` makes the network from."""
        if self.features is None and self.features_ is not None:
            raise ValueError(
                f"the clusters were found with the features of {self.features_.network}, which is not saved with them; "
                "name its file again: --features FILE on the command line, the attribute `features` in Python"
            )
        if self.features == LEARN:
            if self.encoder_ is None:
                raise ValueError("the encoder that was learnt is not saved with the clusters; set `encoder_` to it")
            return self.encoder_
        if self.features != "auto":
            return self.features
        if self.features_ is not None:
            return self.features_.network
        return EXTRA_NETWORK if has_extra_network() else STATISTICS

    def _spread(
        self, known: tuple[NDArray, NDArray], labels: NDArray, confidences: NDArray, weights: sparse.csr_array,
        rows: NDArray,
    ) -> tuple[NDArray, NDArray]:  # fmt: skip
        """Set the classes and their probabilities; returns clusters that respect them and their confidences."""
        classes, index = known
        first = index.copy()  # the class of a copy is that of the first image with the same content
        for image in np.flatnonzero(index >= 0)[::-1]:
            first[self.copies_[image]] = index[image]
        self._labelled = first >= 0
        if self.features_ is None:
            spread = spread_labels(weights, first[rows], len(classes))
        else:
            points, point_share = self.features_.points, 1 - self.features_.pixel_share
            spread = class_probabilities(weights, first[rows], len(classes), points, point_share)
        probabilities = np.full((len(index), len(classes)), 1 / len(classes))
        probabilities[rows] = spread
        self.classes_, self.probabilities_ = classes, probabilities[self.copies_]
        joined = np.isin(labels, np.unique(labels[first[rows] >= 0]))
        return respect_classes(labels, first[rows], spread), np.where(joined, spread.max(1), confidences)

    def fit_transform(self, X: ArrayLike, y: object = None, **fit_params: Any) -> NDArray:
        """Fit, and return the orbit distance of the same images to every average, (n, K)."""
        return self.fit(X, y, **fit_params).transform(X)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Negative mean squared orbit distance to the nearest average; higher is better."""
        distances = self.transform(X).min(1)
        shown = np.isfinite(distances)
        check_content(shown)
        return -float((distances[shown] ** 2).mean())

    def aligned(self, X: ArrayLike, cluster: int) -> NDArray:
        """The fitted images of one cluster, aligned to its average: (m, h, w) or (m, h, w, c)."""
        check_is_fitted(self)
        batch, _ = self._without_light(self._given(X, fitting=False))
        if len(batch) != len(self.labels_):
            raise ValueError(f"X must be the {len(self.labels_)} images that were fitted, got {len(batch)}")
        if not 0 <= cluster < self.n_clusters_:
            raise ValueError(f"cluster must be one of 0 to {self.n_clusters_ - 1}, got {cluster}")
        rows = np.flatnonzero(self.labels_ == cluster)
        if self._is_vectors:
            return batch[rows][:, 0, 0].numpy()
        return from_batch(warp_in_chunks(batch[rows], self.poses_[rows]), channels=self._has_channels)

    def report(self, X: ArrayLike, path: str | os.PathLike[str], *, title: str = "images") -> Path:
        """Write the page of ``unpose cluster``, on which groups are looked at and named, as one HTML file.

        Parameters
        ----------
        X : like that of :meth:`fit`
            The images that were fitted. The page has the names of their files.
        path : str or path
            The file to write, such as ``"groups.html"``; a file of this name is replaced. It needs no other file.
        title : str, default "images"
            What the images are called on the page.

        Returns
        -------
        Path
            The file that was written.

        Examples
        --------
        >>> import tempfile
        >>> images = np.stack([np.rot90(np.tri(13), k) for k in range(4)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     InvariantClustering(1).fit(images).report(images, f"{folder}/groups.html", title="triangles").name
        'groups.html'
        """
        from unpose.cluster.page import write_page  # templates, which fits do not need

        check_is_fitted(self)
        return write_page(self, X, path, title)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.json`` and ``model.safetensors`` into a folder; loading them executes no code."""
        check_is_fitted(self)
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "InvariantClustering":
        """Load a fitted estimator from the folder that :meth:`save` wrote."""
        model: InvariantClustering = saving.load(cls, folder)
        return model

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What notebooks show: the averages if fitted, else the parameters."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        if not hasattr(self, "means_") or self._is_vectors:
            return str(self._html_repr())
        from unpose.report import pictures_html

        sizes = np.bincount(self.labels_[self.labels_ >= 0], minlength=len(self.means_))
        return pictures_html(self.means_, [f"{k}: {size} images" for k, size in enumerate(sizes)])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _without_light(self, given: Any, folder: Folder = None) -> tuple[Any, NDArray]:
        """Images (n, c, h, w) without effects of light, and which are not constant (n,)."""
        if self._is_vectors:
            return given, np.ones(len(given), bool)
        if isinstance(given, Batch):
            return normalise_pieces(given, self.light_, folder)
        normalised = normalise_light(given, self.light_)
        return normalised, has_content(normalised)

    def _named(self, X: Any, *, fitting: bool) -> tuple[Any, list[str] | None]:
        """The images of files, of a folder or of an ImageSet with their names; arrays as they are, without names."""
        if is_image_set(X):
            return X.images, X.names
        if not are_files(X):
            return X, None
        if fitting or self._is_vectors:
            return read_files(X, self.memory)
        return read_files(X, self.memory, "rgb" if self._has_channels else "grey", self.image_shape_[:2])

    def _given(self, X: Any, *, fitting: bool, pieces: bool = False) -> Any:
        """Check the input; returns images as they are, (n, c, h, w), or vectors (n, 1, 1, d).

        With ``pieces``, many images that are not in memory are returned as a :class:`unpose.cluster.pieces.Batch`.
        """
        X, names = self._named(X.detach() if isinstance(X, Tensor) else X, fitting=fitting)
        if fitting:
            self.names_ = names
        if count_axes(X) <= 2:
            # Integers of 8 and 16 bits are converted by `as_batch`, which divides by their full scale.
            rows = validate_data(self, X, reset=fitting, dtype=[np.float64, np.float32, np.uint8, np.uint16])
            if fitting:
                self._is_vectors, self._has_channels = self.image_shape is None, False
            if self._is_vectors:
                vectors = torch.tensor(rows if rows.dtype.kind == "f" else rows.astype(np.float64))[:, None, None]
                if fitting:
                    self._set_copies(vectors)
                return vectors
            X = as_images(rows, self.image_shape_ if self.image_shape is None else self.image_shape)
        elif not fitting and self._is_vectors:
            raise ValueError(f"vectors of {self.means_.shape[1]} numbers were fitted, got images; fit images instead")
        elif isinstance(X, list | tuple) and len({np.shape(picture) for picture in X}) > 1:
            X = onto_one_canvas(X, None if fitting else (self.image_shape_[0], self.image_shape_[1]))
        has_channels = count_axes(X) == 4
        channels_first = has_channels and is_channels_first(X, self.channels_first)
        stored = as_pieces(X, self._limits) if pieces else None
        if stored is not None:
            batch: Any = Batch(stored, channels_first=channels_first, limits=self._limits)
        else:
            X = np.asarray(X) if hasattr(X, "__array__") and not isinstance(X, Tensor) else X
            batch = bounded(as_batch(X, dtype=torch.float32, channels_first=channels_first).detach())
        if fitting:
            self._is_vectors, self._has_channels = False, has_channels
            self.n_features_in_ = math.prod(batch.shape[1:])
            self._set_copies(batch)
        channels, height, width = batch.shape[1:]
        shape = (height, width, channels) if has_channels else (height, width)
        if not fitting and shape != self.image_shape_:
            raise ValueError(f"images must be of the shape that was fitted, {self.image_shape_}, got {shape}")
        self.image_shape_: tuple[int, ...] = shape
        return batch

    def _set_copies(self, images: Any) -> None:
        """Find the images (n, ...) with the same pixels as an earlier one."""
        self._digests = content_digests(images)
        self.copies_ = first_equal(self._digests)

    def _means_with_channels(self) -> NDArray:
        """The averages as (K, h, w, c)."""
        return self.means_ if self.means_.ndim == 4 else self.means_[..., None]

    def _search(self, progress: Progress | None = None, client: Any = None) -> Search:
        return Search(
            group=self.range_.group, max_angle=self.range_.max_angle, max_shift=self.max_shift,
            max_scale=self.range_.max_scale,
            contrast=LIGHT_CONTRAST[self.light_], mask=self.mask, device=self.device, n_jobs=self.n_jobs,
            memory=self.memory, progress=progress, executor=None if client is None else DaskExecutor(client),
        )  # fmt: skip

    def _set_references(self, images: Any, typical: NDArray) -> None:
        """Keep the fitted images that count, (m, c, h, w), or a sample of them, to compare new ones with.

        ``typical`` (m,) are their distances to their neighbours.
        """
        self._typical_distances, self._reference_rows, self._n_fitted = typical, None, len(self.labels_)
        if self._is_vectors:
            self.references_ = images.numpy()
            return
        m = len(images)
        some = small_images(images[:1])
        most = max(N_NEIGHBOURS, self._limits.reference_bytes // (4 * some.numel()))
        if m > most:
            self._reference_rows = evenly_spaced_rows(m, most)
            self._typical_distances = typical * sparser_factor(self.neighbours_.distances, most / m)
        rows = np.arange(m) if self._reference_rows is None else self._reference_rows
        self.references_ = np.empty((len(rows), *some.shape[1:]), np.float32)  # images may have values of any size
        at_once = self._limits.aligned_at_once
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            self.references_[start : start + len(part)] = small_images(images[part]).numpy()

    def _set_averages(
        self, batch: Any, rows: NDArray, labels: NDArray, weights: sparse.csr_array, search: Search | None,
        checkpoints: Checkpoints | None,
    ) -> None:  # fmt: skip
        """Set the clusters from the labels of the images ``rows``, with averages, their errors, poses and symmetries.

        ``weights`` is the attention matrix among them; ``search`` is None for vectors.
        """
        ranked = np.lexsort((-attention_inside(weights, labels), labels))  # by cluster, then by attention
        exemplars = ranked[np.unique(labels[ranked], return_index=True)[1]]
        self.n_clusters_, self.exemplars_ = len(exemplars), rows[exemplars]
        self.labels_ = np.full(len(batch), -1)
        self.labels_[rows] = labels
        self.labels_ = self.labels_[self.copies_]
        self.poses_ = np.tile(np.eye(3), (len(batch), 1, 1))
        self.symmetries_ = np.ones(self.n_clusters_, np.int64)
        if search is None:
            X = batch[rows][:, 0, 0].numpy()
            groups = [X[labels == k] for k in range(self.n_clusters_)]
            self.means_ = np.stack([group.mean(0) for group in groups])
            self.standard_errors_ = np.stack(
                [group.std(0, ddof=min(1, len(group) - 1)) / math.sqrt(len(group)) for group in groups]
            )
            return
        found = average_groups(take(batch, rows), labels, exemplars, search, checkpoints)
        self.means_ = from_batch(found.means, channels=self._has_channels)
        self.standard_errors_ = from_batch(found.standard_errors, channels=self._has_channels)
        self.poses_[rows] = found.poses
        # Resampling roughens a mean slightly; after smoothing it matches itself at every pose of its symmetry.
        smoothed = smooth(found.means, 1.0).movedim(1, -1)
        same = align(smoothed, smoothed, search=replace(search, progress=None))
        self.symmetries_ += np.array([len(poses) for poses in same.alternatives])

    def _set_poses_of_copies(self, batch: Any, rows: NDArray, search: Search | None) -> None:
        """Set the poses of the images ``rows``, which were not averaged; ``search`` is None for vectors."""
        if len(rows) and search is not None:
            means, quiet = self._means_with_channels(), replace(search, progress=None)
            self.poses_[rows] = align_to_means(take(batch, rows), means, self.labels_[rows], quiet)["poses"]


def fit_within(limits: Limits, model: InvariantClustering, X: Any, y: object = None, **options: Any) -> Any:
    """Fit an estimator that takes the ways of large sets from other numbers of images on, and returns it.

    Parameters
    ----------
    limits : Limits
        They hold for all later calls of the estimator, too, and are not saved with it.
    model : InvariantClustering
        The estimator, which is fitted in place.
    X, y, **options
        As for :meth:`InvariantClustering.fit`.

    Returns
    -------
    InvariantClustering
        The estimator itself.
    """
    model._limits = limits
    return model.fit(X, y, **options)
