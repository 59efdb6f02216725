"""Carry the weights of an attention network over to a group with more rotations."""

import math

import torch
from torch import Tensor

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import parse_point_group
from unpose.nn.layers.attention import GroupSelfAttention
from unpose.nn.layers.encodings import SeparableEncoding
from unpose.nn.networks.base import Network
from unpose.nn.networks.registry import rebuild


def with_larger_group(network: Network, group: str | FiniteGroup) -> Network:
    """Return the same group attention network for more rotations, with the weights of the given one.

    Positions are encoded by functions of the plane, which can be evaluated at any angle; only the embedding of each
    relative element depends on the group, and it is interpolated linearly along the circle. Attention is a mean over
    keys and remains one with twice as many keys. So the new network starts with nearly the predictions of the old one,
    and a short training makes it better: a training step with 4 rotations costs a fifth of one with 12.

    Parameters
    ----------
    network : Network
        A network whose only weights per group element are the embeddings of relative elements, as
        :func:`unpose.nn.gsa_net`.
    group : str or FiniteGroup
        Rotations if the network's group has rotations only, rotations and mirrors if it has both.

    Returns
    -------
    Network
        A new network on the same device and in the same mode; the given one is unchanged.

    Raises
    ------
    ValueError
        If only one of the groups has mirrors, or if the network has group convolutions or the paper's sum over the
        queries of all elements: their sums grow with the group, and kernels are learnt per element.

    Examples
    --------
    >>> from unpose.nn import gsa_net
    >>> coarse = gsa_net("c4", 1, 10, 28)
    >>> with_larger_group(coarse, "c8").description == coarse.description | {"group": "c8"}
    True
    """
    new_group = parse_point_group(group)
    if any(isinstance(module, GroupSelfAttention) and module.mode != "relative" for module in network.modules()):
        raise ValueError("the sum over all queries grows with the group; only mode 'relative' can change its group")
    interpolation = _interpolation(network.group, new_group)  # (new order, old order)
    larger = rebuild(network.description | {"group": new_group.name})
    embeddings = {
        f"{name}.element.weight"
        for name, module in network.named_modules()
        if isinstance(module, SeparableEncoding) and module.element is not None
    }
    shapes = {name: weight.shape for name, weight in larger.state_dict().items()}
    weights = {
        name: interpolation.to(old) @ old if name in embeddings else old.clone()
        for name, old in network.state_dict().items()
    }
    for name, weight in weights.items():
        if weight.shape != shapes[name]:
            raise ValueError(
                f"a {network.description['network']} learns {name} for {network.group.name} alone; only a network of "
                "pure attention can change its group"
            )
    larger.load_state_dict(weights, assign=True)  # assign: keep the type of the given weights
    return larger.to(next(network.parameters()).device).train(network.training)


def _interpolation(old: FiniteGroup, new: FiniteGroup) -> Tensor:
    """Return the linear interpolation along the circle from old to new elements, (new order, old order)."""
    old_angles, old_signs = _angles_and_signs(old)
    new_angles, new_signs = _angles_and_signs(new)
    if set(old_signs.tolist()) != set(new_signs.tolist()):
        raise ValueError(f"{old.name} and {new.name} do not correspond: one has mirrors, the other has not")
    difference = (new_angles[:, None] - old_angles + math.pi).remainder(2 * math.pi) - math.pi  # (new, old)
    spacing = 2 * math.pi * len(old_signs.unique()) / old.order
    weights = (1 - difference.abs() / spacing).clamp(min=0) * (new_signs[:, None] == old_signs)
    return weights / weights.sum(1, keepdim=True)


def _angles_and_signs(group: FiniteGroup) -> tuple[Tensor, Tensor]:
    """Return the angle and the sign of the determinant, -1 for mirrors, of every element: (order,) each."""
    linear = group.elements[:, :2, :2]
    return torch.atan2(linear[:, 1, 0], linear[:, 0, 0]), torch.linalg.det(linear).sign()
