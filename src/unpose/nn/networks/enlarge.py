"""The same network with more directions: what was learnt with a small group of turns goes on with a larger one."""

import math

import torch
from torch import Tensor

from unpose.groups import FiniteGroup
from unpose.nn.layers.encodings import SeparableEncoding
from unpose.nn.networks.base import Network, parse_point_group
from unpose.nn.networks.registry import rebuild


def refined(network: Network, group: str | FiniteGroup) -> Network:
    """A network of group attention for another number of turns, with the weights of this one.

    Where a key lies is encoded by functions of the plane, which can be asked at any angle; only the vector of each
    relative element belongs to the group. Between two elements it is interpolated along the circle. Attention is a
    mean over keys and stays one with twice as many. So before it has learnt anything the finer network answers much
    like the coarse one, and a short training makes it the better one: a step with 4 turns costs a fifth of one with 12.

    Parameters
    ----------
    network : whose only weights by element are vectors of relative elements, as in :func:`unpose.nn.gsa_net`
    group : of turns where the network's is, of turns and mirrors where the network's is

    Raises
    ------
    ValueError
        Where one group has mirrors and the other none, or where the network convolves: kernels are learnt for each
        element, and their sums grow with the group.

    Examples
    --------
    >>> from unpose.nn import gsa_net
    >>> coarse = gsa_net("c4", 1, 10, 28)
    >>> refined(coarse, "c8").description == coarse.description | {"group": "c8"}
    True
    """
    wanted = parse_point_group(group)
    between = _between(network.group, wanted)  # (new, old)
    finer = rebuild(network.description | {"group": wanted.name})
    tables = {
        f"{name}.element.weight"
        for name, module in network.named_modules()
        if isinstance(module, SeparableEncoding) and module.element is not None
    }
    own = finer.state_dict()
    taken = {
        name: between.to(old) @ old if name in tables else old.clone() for name, old in network.state_dict().items()
    }
    for name, weight in taken.items():
        if weight.shape != own[name].shape:
            kind = network.description["network"]
            raise ValueError(f"a {kind} learns {name} for {network.group.name} alone; only pure attention is refined")
    finer.load_state_dict(taken, assign=True)  # in the type that they have
    return finer.to(next(network.parameters()).device).train(network.training)


def _between(old: FiniteGroup, new: FiniteGroup) -> Tensor:
    """Weights of the old elements at each new one, (new, old): of the two nearest along the circle, 1 in all."""
    old_angles, old_hands = _turns(old)
    new_angles, new_hands = _turns(new)
    if set(old_hands.tolist()) != set(new_hands.tolist()):
        raise ValueError(f"{old.name} and {new.name} cannot stand for each other: one has mirrors, the other has not")
    apart = (new_angles[:, None] - old_angles + math.pi).remainder(2 * math.pi) - math.pi  # (new, old)
    spacing = 2 * math.pi * len(old_hands.unique()) / old.order
    near = (1 - apart.abs() / spacing).clamp(min=0) * (new_hands[:, None] == old_hands)
    return near / near.sum(1, keepdim=True)


def _turns(group: FiniteGroup) -> tuple[Tensor, Tensor]:
    """Angle and handedness of every element: a turn, or a turn after a mirror."""
    linear = group.elements[:, :2, :2]
    return torch.atan2(linear[:, 1, 0], linear[:, 0, 0]), torch.linalg.det(linear).sign()
