"""Which images the page of a run shows, and what it keeps of them: thumbnails, and the attention among them.

The page holds up to 24,000 images. Of more images it shows a sample, equally many of each cluster, evenly over the
confidences; counts, averages and the attention matrix are those of all images, and ``labels.csv`` lists all.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy import sparse

PAGE_IMAGES = 24_000
"""Most images on a page: a browser still moves them without delay."""
_THUMBNAIL_BYTES = 64 * 2**20
"""Budget of the thumbnails that a run keeps so that its page can be made again without the images."""
_THUMBNAIL_SIDE = 64
_LINKS = 8
"""Links of an image in the sample to others of the sample."""


def page_sample(labels: "NDArray", confidences: "NDArray", copies: "NDArray", exemplars: "NDArray") -> "NDArray | None":
    """Ascending indices of the images that the page shows; None for all, if there are no more than 24,000.

    ``labels``, ``confidences`` and ``copies`` are (n,), ``exemplars`` (K,), as in ``InvariantClustering``. Of a larger
    set, every cluster has the same number of images on the page, or all of its images if it has fewer; copies are left
    out.
    """
    import numpy as np

    from unpose.report import evenly_spaced, share_equally

    if len(labels) <= PAGE_IMAGES:
        return None
    first = np.flatnonzero(copies == np.arange(len(copies)))
    order = first[np.lexsort((-confidences[first], labels[first]))]  # by cluster, then by confidence
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    shares = share_equally([len(group) for group in groups], PAGE_IMAGES - len(exemplars))
    chosen = [group[evenly_spaced(len(group), share)] for group, share in zip(groups, shares, strict=True) if share]
    return np.unique(np.concatenate([*chosen, exemplars]))


def attended_sample(weights: "sparse.csr_array", rows: "NDArray") -> "sparse.csr_array":
    """Attention among the images ``rows`` (m,) of a larger set, directly and by way of one image between: (m, m).

    Few neighbours of an image are in a sample of a large set, but many of the neighbours of its neighbours are.
    """
    import numpy as np
    from scipy import sparse

    from unpose.cluster.graph import largest_entries

    matrix = sparse.csr_array(weights)
    some = sparse.csr_array(matrix[rows])
    degree = np.maximum(np.asarray(matrix.sum(1)).ravel(), 1e-300)
    onward = sparse.csr_array(sparse.csc_array(matrix)[:, rows])
    both = sparse.csr_array(some[:, rows] + (some @ sparse.diags_array(1 / degree)) @ onward)
    both.setdiag(0.0)
    both.eliminate_zeros()
    return largest_entries(both, _LINKS)


def thumbnails(images: Any, rows: "NDArray | None", low: float, high: float, side: int | None = None) -> "NDArray":
    """Small copies of the images ``rows``, or of all, (m, h, w) or (m, h, w, 3) of uint8.

    Without ``side`` they are as large as the budget in bytes allows; ``low`` and ``high`` are the values of black and
    white.
    """
    import numpy as np

    from unpose.report import thumbnail

    channels, count = 3 if len(images.shape) == 4 else 1, len(images) if rows is None else len(rows)
    side = side or int(max(8, min(_THUMBNAIL_SIDE, (_THUMBNAIL_BYTES / (count * channels)) ** 0.5)))
    chosen = range(count) if rows is None else rows
    small = [np.asarray(thumbnail(images[i], (low, high), side)) for i in chosen]  # (h, w, 3) each
    return np.stack(small if channels == 3 else [each[..., 0] for each in small])


class EnlargedThumbnails(Sequence[Any]):
    """Thumbnails at the size of the canvas, the unit of the poses; each is enlarged when it is read."""

    def __init__(self, small: "NDArray", shape: tuple[int, int]) -> None:
        self._small, self._shape = small, shape

    def __len__(self) -> int:
        return len(self._small)

    def __getitem__(self, index: Any) -> Any:
        import numpy as np
        from PIL import Image

        picture = Image.fromarray(self._small[index])
        return np.asarray(picture.resize(self._shape[::-1], Image.Resampling.NEAREST))
