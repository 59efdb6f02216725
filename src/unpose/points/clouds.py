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


def centred(points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points relative to their centroids (b, n, d), zero in the padding; centroids (b, 1, d); sizes (b, 1, 1).

    Sizes are root mean square radii, and 1 if all points coincide.
    """
    count, exists = mask.sum(1)[:, None, None], mask[..., None]
    centre = torch.where(exists, points, torch.zeros_like(points)).sum(1, keepdim=True) / count
    local = torch.where(exists, points - centre, torch.zeros_like(points))
    shift = local.sum(1, keepdim=True) / count  # what rounding left, where clouds are far from the origin
    local = torch.where(exists, local - shift, local)
    square = local.square().sum((1, 2), keepdim=True) / count
    return local, centre + shift, torch.where(square > 0, square, torch.ones_like(square)).sqrt()


def surroundings(points: Tensor, mask: Tensor, k: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (b, n, k) of the nearest other points, differences to them (b, n, k, d), and their weights (b, n, k).

    All other points for k None. Weights fall smoothly to zero at the distance of the next point that is left out, so
    that nothing depends on the order of points at equal distances; they are zero for points that do not exist.
    """
    n = points.shape[1]
    wanted = n - 1 if k is None else min(k, n - 1)
    distances = torch.cdist(points.detach(), points.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances.masked_fill(~mask[:, None, :], torch.inf)
    distances = distances.masked_fill(torch.eye(n, dtype=torch.bool, device=points.device), torch.inf)
    nearest, index = distances.topk(max(1, min(wanted + 1, n - 1)), largest=False)
    exists = nearest.isfinite() & mask[..., None]
    difference = torch.where(exists[..., None], gather(points, index) - points[:, :, None], 0.0)
    window = exists.to(points)
    if 0 < wanted < n - 1:
        square = difference.square().sum(-1)
        fraction = square / square[..., -1:].clamp(min=1e-30)
        window = torch.where(exists[..., -1:], window * (1 - fraction).clamp(min=0).square(), window)
        index, difference, window = index[..., :-1], difference[..., :-1, :], window[..., :-1]
    return index, difference, window


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
