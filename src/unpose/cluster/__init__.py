"""Group, align and average images whose pose is unknown.

:class:`InvariantClustering` is the scikit-learn estimator, :func:`align_stack` aligns images of one object. The
paper's method, as we read it, is in :mod:`unpose.cluster.published`. Files, in the order of their use:

================== ====================================================================================================
``estimator.py``   the estimator: from images to labels, poses and averages
``inputs.py``      arrays, rows of pixels, folders and files as images
``limits.py``      numbers of images at which another way is taken
``pieces.py``      images that do not fit into memory, read in pieces
``light.py``       background and contrast are removed before images are compared
``rounds.py``      rounds of invariant attention, while the differences between neighbours look like noise
``neighbours.py``  the neighbours of every image, at a small size, after rounds of attention
``graph.py``       from neighbours to a sparse attention matrix
``features.py``    vectors of a network, averaged over the orbit
``joint_graph.py`` the graphs of pixels and of features, joined and diffused
``labels.py``      a few known classes spread over the graph; which images to label next
``tree.py``        finer and coarser clusters, without a new fit
``readout.py``     from the attention matrix to labels, with the criterion of ``modularity.py``
``resolution.py``  how finely the graph is divided if the number of clusters is not given
``coarsening.py``  contract the graph of many images, so that read-out and map take minutes
``stability.py``   how far the clusters of random subsets agree, the measure of confidence
``copies.py``      images that are copies of others
``assignment.py``  statistics of new images: votes of neighbours, and p-values for images of none of the clusters
``new_images.py``  new images compared with the fitted ones, by pixels and by features
``additions.py``   images that are added to a finished clustering
``averaging.py``   alternate between aligning images to their average and averaging them
``timing.py``      the CPU time of the stages, for plans of larger runs
``saving.py``      a fitted estimator as two files
``pictures.py``    aligned images, averages and rounds of attention as people see them
``layout.py``      a two-dimensional map of all images
``page.py``        what the page shows, from a fitted estimator and its images
``agreement.py``   how well labels agree with given classes
``published.py``   kernel attention, invariant weights, means and attention of the paper
``theorems.py``    the quantities of the paper's theorems: contraction, and the reach of orbits
================== ====================================================================================================
"""

from unpose.cluster.agreement import agreement_with_classes
from unpose.cluster.assignment import Assignment
from unpose.cluster.averaging import AlignedStack, align_stack
from unpose.cluster.estimator import InvariantClustering
from unpose.cluster.layout import graph_layout
from unpose.cluster.light import constant_images
from unpose.cluster.pictures import apply_poses, attention_frames, group_means
from unpose.cluster.timing import StageTimes, stage_times

__all__ = [
    "AlignedStack",
    "Assignment",
    "InvariantClustering",
    "StageTimes",
    "agreement_with_classes",
    "align_stack",
    "apply_poses",
    "attention_frames",
    "constant_images",
    "graph_layout",
    "group_means",
    "stage_times",
]
