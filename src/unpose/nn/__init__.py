"""Layers and networks that are equivariant or invariant to a group: a rotated image is the same image.

Most people need a network, :func:`gsa_net`, :func:`group_cnn` or :func:`swivel_net`, and train it with
``unpose.train``. The layers are for networks of your own; :func:`group_attention` and :func:`orbit_attention` are the
functions behind them, without weights.

Which file to open, from top to bottom; each folder imports only those below it:

============================================ =========================================================================
``networks/gsa.py``                          the published group self-attention networks
``networks/group_cnn.py``                    group convolution networks
``networks/resnet.py``                       residual group convolution networks, and encoders
``networks/swivel.py``                       convolution stem, then attention
``networks/scale.py``                        dilations: objects at unseen sizes
``networks/lie.py``                          convolution and attention on continuous groups
``networks/scale_fourier.py``                images at any resolution
``networks/patch.py``                        a vision transformer with Invariant Attention among patches
``networks/unet.py``                         U-Nets of group convolutions, for masks and fields of vectors
``networks/vit.py``                          vision transformers in the irrep basis of a group
``networks/base.py``, ``registry.py``        the base class; networks by name
``networks/enlarge.py``                      carry weights over to a group with more rotations
``layers/attention.py``                      lifting and group self-attention
``layers/constants.py``                      constant tables: never saved, right after every move and load
``layers/convolution.py``                    group convolution
``layers/convolution_as_attention.py``       the attention layer that equals a given group convolution
``layers/frame_attention.py``                transformer blocks: attention with the elements of the group as heads
``layers/lie_convolution.py``                convolution on a continuous group, with sampled linear parts
``layers/lie_attention.py``                  self-attention among elements of a continuous group
``layers/scale_fourier.py``                  convolution and activation that commute with ideal downscaling
``layers/irreps.py``                         linear map, norm and MLP in the irrep basis
``layers/heads.py``                          heads: class scores, masks, vectors
``layers/norm_and_pooling.py``               channel norm, batch norm, pointwise linear layer, pooling
``layers/encodings.py``                      position encodings: separable (the paper's) and harmonic (steerable)
``layers/invariant_attention.py``            Invariant Attention among patches, patch embedding over an orbit
``functional/group_attention.py``            group attention: formula, shapes, pseudo-code, choice of implementation
``functional/orbit_attention.py``            Invariant Attention among patches
``functional/positions.py``                  relative positions and elements, position tables, dilations
``functional/checks.py``                     parsing and checking of arguments
``ops/``                                     operators: ``reference`` in plain PyTorch, kernels in ``cpu`` and ``cuda``
============================================ =========================================================================
"""

from unpose.nn.functional.group_attention import estimate_memory, group_attention
from unpose.nn.functional.orbit_attention import OrbitAttentionResult, orbit_attention
from unpose.nn.functional.positions import position_table
from unpose.nn.layers.attention import GroupSelfAttention, LiftingSelfAttention
from unpose.nn.layers.convolution import GroupConv2d
from unpose.nn.layers.convolution_as_attention import attention_from_convolution
from unpose.nn.layers.encodings import HarmonicEncoding, SeparableEncoding
from unpose.nn.layers.frame_attention import FrameAttention, FrameBlock, LiftingPatchEmbed
from unpose.nn.layers.group_fourier import GroupFourier2d, GroupFourierNet, group_fourier
from unpose.nn.layers.heads import ClassHead, MaskHead, VectorHead
from unpose.nn.layers.invariant_attention import InvariantAttentionBlock, OrbitEmbedding
from unpose.nn.layers.irreps import FrameMLP, IrrepLinear, IrrepNorm
from unpose.nn.layers.lie_attention import LieBlock, LieSelfAttention
from unpose.nn.layers.lie_convolution import LieConv2d
from unpose.nn.layers.norm_and_pooling import ChannelNorm, GroupBatchNorm, GroupPool, PointwiseLinear, SpatialPool
from unpose.nn.layers.scale_fourier import ScaleFourier2d, scale_activation
from unpose.nn.networks.base import Network, count_parameters
from unpose.nn.networks.enlarge import with_larger_group
from unpose.nn.networks.group_cnn import group_cnn
from unpose.nn.networks.gsa import GSA_NET_CONFIGS, GSANetConfig, gsa_net
from unpose.nn.networks.lie import lie_cnn, lie_transformer
from unpose.nn.networks.patch import patch_net
from unpose.nn.networks.registry import NETWORKS, create_network, example_network, rebuild
from unpose.nn.networks.resnet import group_resnet
from unpose.nn.networks.scale import scale_net, scale_pyramid
from unpose.nn.networks.scale_fourier import scale_fourier_net
from unpose.nn.networks.swivel import swivel_net
from unpose.nn.networks.unet import equivariant_unet
from unpose.nn.networks.vit import equivariant_vit
from unpose.nn.ops.dispatch import implementation

__all__ = [
    "GSA_NET_CONFIGS",
    "NETWORKS",
    "ChannelNorm",
    "ClassHead",
    "FrameAttention",
    "FrameBlock",
    "FrameMLP",
    "GSANetConfig",
    "GroupBatchNorm",
    "GroupConv2d",
    "GroupFourier2d",
    "GroupFourierNet",
    "GroupPool",
    "GroupSelfAttention",
    "HarmonicEncoding",
    "InvariantAttentionBlock",
    "IrrepLinear",
    "IrrepNorm",
    "LieBlock",
    "LieConv2d",
    "LieSelfAttention",
    "LiftingPatchEmbed",
    "LiftingSelfAttention",
    "MaskHead",
    "Network",
    "OrbitAttentionResult",
    "OrbitEmbedding",
    "PointwiseLinear",
    "ScaleFourier2d",
    "SeparableEncoding",
    "SpatialPool",
    "VectorHead",
    "attention_from_convolution",
    "count_parameters",
    "create_network",
    "equivariant_unet",
    "equivariant_vit",
    "estimate_memory",
    "example_network",
    "group_attention",
    "group_cnn",
    "group_fourier",
    "group_resnet",
    "gsa_net",
    "implementation",
    "lie_cnn",
    "lie_transformer",
    "orbit_attention",
    "patch_net",
    "position_table",
    "rebuild",
    "scale_activation",
    "scale_fourier_net",
    "scale_net",
    "scale_pyramid",
    "swivel_net",
    "with_larger_group",
]
