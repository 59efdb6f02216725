"""What all layers on point clouds share: checks, masks, neighbours, centring and Deep Sets pooling.

Convention
----------
Points are ``(b, n, d)`` with d = 2 or 3, features ``(b, n, c)``. A mask ``(b, n)`` is true where a point exists; clouds
of different sizes are padded, and nothing depends on what stands in the padding.
"""

import itertools

import torch
from torch import Tensor, nn

POOLS = ("mean", "sum", "max")


def check_cloud(points: Tensor, mask: Tensor | None, features: Tensor | None = None) -> Tensor:
    """Check points (b, n, d) with features (b, n, c), and return the mask (b, n); all points exist by default."""
    if points.ndim != 3 or points.shape[2] not in (2, 3):
        raise ValueError(f"points must be (b, n, 2) or (b, n, 3), got shape {tuple(points.shape)}")
    if mask is None:
        mask = torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
    if mask.shape != points.shape[:2] or mask.dtype != torch.bool:
        raise ValueError(
            f"the mask must be a bool tensor {tuple(points.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}"
        )
    if not mask.any(1).all():
        raise ValueError(f"cloud {int((~mask.any(1)).nonzero()[0])} has no points")
    if features is not None and features.shape[:2] != points.shape[:2]:
        raise ValueError(
            f"features must be (b, n, c) with b, n = {tuple(points.shape[:2])}, got {tuple(features.shape)}"
        )
    if not points[mask].isfinite().all():
        raise ValueError("points hold NaN or infinity; mask these points out")
    return mask


def centred(points: Tensor, mask: Tensor) -> Tensor:
    """Points relative to their centroids, zero in the padding: (b, n, d) -> (b, n, d)."""
    points = torch.where(mask[..., None], points, torch.zeros_like(points))
    mean = points.sum(1, keepdim=True) / mask.sum(1)[:, None, None]
    return torch.where(mask[..., None], points - mean, torch.zeros_like(points))


def neighbours(points: Tensor, mask: Tensor, k: int | None) -> tuple[Tensor, Tensor]:
    """Indices (b, n, k) of the nearest other points, and which of them exist (b, n, k); all others for k None."""
    n = points.shape[1]
    k = max(1, min(n - 1, k or n - 1))
    distances = torch.cdist(points.detach(), points.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances.masked_fill(~mask[:, None, :], torch.inf)
    distances = distances.masked_fill(torch.eye(n, dtype=torch.bool, device=points.device), torch.inf)
    nearest, index = distances.topk(min(k, n), largest=False)
    return index, nearest.isfinite() & mask[..., None]


def gather(values: Tensor, index: Tensor) -> Tensor:
    """The values of neighbours: (b, n, c) at (b, n, k) -> (b, n, k, c)."""
    batch = torch.arange(len(values), device=values.device)[:, None, None]
    return values[batch, index]


def pool(features: Tensor, mask: Tensor | None = None, how: str = "mean") -> Tensor:
    """Pool the features of a set: the same for every order of its members.

    Parameters
    ----------
    features : Tensor, shape (b, n, c)
    mask : bool Tensor, shape (b, n), optional
        Which members exist; all by default.
    how : {"mean", "sum", "max"}, default "mean"

    Returns
    -------
    Tensor, shape (b, c)

    Examples
    --------
    >>> pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    if how not in POOLS:
        raise ValueError(f"how must be one of {', '.join(map(repr, POOLS))}, got {how!r}")
    if mask is None:
        mask = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    if how == "max":
        return features.masked_fill(~mask[..., None], -torch.inf).amax(1)
    total = torch.where(mask[..., None], features, torch.zeros_like(features)).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1) if how == "mean" else total


class DeepSet(nn.Module):
    """A network on sets: a function of each member, pooling, a function of the result (Zaheer et al., 2017).

    On coordinates it is the plain network that a rotation confuses (PointNet without its transformer); on invariant
    features it is invariant.

    Parameters
    ----------
    in_features : int
        Numbers for each member.
    n_out : int
        Outputs.
    width : int, default 64
        Hidden channels.
    how : {"mean", "sum", "max"}, default "max"
        Pooling.

    Examples
    --------
    >>> net, cloud = DeepSet(3, 5).eval(), torch.rand(2, 7, 3)
    >>> torch.allclose(net(cloud), net(cloud.flip(1)), atol=1e-6)
    True
    """

    def __init__(self, in_features: int, n_out: int, width: int = 64, how: str = "max") -> None:
        super().__init__()
        self.how = how
        self.each = mlp(in_features, width, width, width)
        self.all = mlp(width, width, n_out)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, n, in_features) -> (b, n_out)"""
        if mask is not None:
            features = torch.where(mask[..., None], features, torch.zeros_like(features))
        return self.all(pool(self.each(features), mask, self.how))


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with SiLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1])
