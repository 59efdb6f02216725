"""The loss of two views of each image: VICReg (Bardes, Ponce and LeCun 2022)."""

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, relu

_LEAST_VARIANCE = 1e-4
"""Added to variances, whose root has no gradient at zero (the epsilon of eq. 2)."""


def vicreg_loss(
    first: Tensor, second: Tensor, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """Variance-invariance-covariance loss of the vectors of two views (Bardes, Ponce and LeCun 2022, eq. 6).

    Parameters
    ----------
    first, second : (n, d) tensors
        Row i of both belongs to the same image.
    invariance : float, default 25.0
        Weight of the mean squared distance between both views.
    variance : float, default 25.0
        Weight of the hinge ``max(0, 1 - deviation)`` of every entry, the mean of both views. Without it, all vectors
        become equal.
    covariance : float, default 1.0
        Weight of the squared covariances between different entries, summed and divided by d.

    Returns
    -------
    Tensor
        0-d, computed in float32 (float64 for vectors in float64) under autocast too.

    Examples
    --------
    >>> spread = 4 * torch.eye(4)
    >>> same = vicreg_loss(spread, spread, covariance=0.0)
    >>> collapsed = vicreg_loss(torch.ones(4, 4), torch.ones(4, 4), covariance=0.0)
    >>> float(same), round(float(collapsed), 2)
    (0.0, 24.75)
    """
    if first.shape != second.shape or first.ndim != 2 or len(first) < 2:
        raise ValueError(f"both views must be (n, d) with n of at least 2, got {first.shape} and {second.shape}")
    n, d = first.shape
    # Sums over a batch need float32 at least: autocast would compute the products in half precision.
    with torch.autocast(first.device.type, enabled=False):
        first, second = (view if view.dtype == torch.float64 else view.float() for view in (first, second))
        loss = invariance * mse_loss(first, second)
        for view in (first, second):
            centred = view - view.mean(0)
            products = centred.T @ centred / (n - 1)  # (d, d)
            variances = products.diagonal()
            loss = loss + variance * relu(1 - (variances + _LEAST_VARIANCE).sqrt()).mean() / 2
            loss = loss + covariance * (products.square().sum() - variances.square().sum()) / d
    return loss
