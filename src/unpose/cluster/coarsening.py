"""Contract a large graph to a small one whose nodes are groups of a few images that attend to each other.

Eigenvectors, k-means and repeated community detection cost hours on the graph of a million images, and the iteration
for the eigenvectors may not converge at all. Images that are linked strongly end in the same cluster in any case, so
they are contracted first. Clusters are found in the contracted graph and improved image by image in the whole one
(Karypis and Kumar, 1998, A fast and high quality multilevel scheme for partitioning irregular graphs).
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.cluster.modularity import RESOLUTION, aggregate, louvain


def contract(graph: sparse.csr_array, rng: np.random.RandomState, n_groups: int) -> NDArray:
    """Group the nodes of a symmetric graph (n, n) into at most ``n_groups`` groups of linked nodes: (n,) from 0.

    Groups maximise modularity at a high resolution, which is halved until there are few enough: a node joins a group of
    s others if more than the share ``resolution s / n`` of its links leads there, so groups stay of similar size. More
    groups are left only if the graph has more components.

    Examples
    --------
    >>> ring = sparse.csr_array(np.roll(np.eye(12), 1, axis=1) + np.roll(np.eye(12), -1, axis=1))
    >>> bool(2 <= contract(ring, np.random.RandomState(0), 4).max() + 1 <= 4)
    True
    """
    member, resolution = np.arange(graph.shape[0]), n_groups / 2
    while True:
        labels = louvain(graph, resolution, rng)
        member, count = labels[member], int(labels.max()) + 1
        if count <= n_groups or resolution < RESOLUTION:
            return member
        graph, resolution = aggregate(graph, labels), resolution / 2
