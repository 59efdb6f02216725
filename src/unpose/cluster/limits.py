"""Numbers of images at which a clustering takes another way, and sizes of its blocks, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """From which sizes on images are read in pieces, sampled, indexed or contracted.

    The values suit ordinary machines; smaller ones take the ways of large sets with few images.

    Parameters
    ----------
    in_memory : int
        Arrays of Dask, Zarr and h5py and memory maps of more images are read in pieces.
    piece_pixels : int
        Pixels of images in pieces that are read at a time.
    aligned_at_once : int
        Images in pieces that are aligned to averages at a time.
    without_index, without_index_gpu : int
        Among more images, candidates come from an index; images that are read in pieces always use it. The index is
        faster and finds fewer of the exact neighbours, so it is used where comparing all pairs would take an hour on
        two cores, or ten minutes on a GPU.
    space_vectors : int
        Vectors that a feature space is fitted to: the principal directions of more are nearly the same, and cost time
        and memory.
    large_graph, groups : int
        A graph of more images is contracted, to at most as many groups, before it is read out or laid out.
    reference_bytes : int
        Most memory of the fitted images that a fitted estimator keeps.
    page_images : int
        Most images on a page: a browser still moves them without delay.
    learning_steps : int or None
        Steps of an epoch in which an encoder is learnt from the images; None for as many as the recipe has.
    """

    in_memory: int = 4096
    piece_pixels: int = 2**21
    aligned_at_once: int = 2048
    without_index: int = 50_000
    without_index_gpu: int = 150_000
    space_vectors: int = 10_000
    large_graph: int = 24_000
    groups: int = 16_000
    reference_bytes: int = 2**28
    page_images: int = 24_000
    learning_steps: int | None = None


DEFAULT = Limits()
