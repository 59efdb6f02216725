"""Networks for which a turned image is the same image: group attention and group convolution."""

from unpose.nn.functional.group_attention import estimate_memory, group_attention
from unpose.nn.functional.orbit_attention import Attended, orbit_attention
from unpose.nn.functional.positions import position_table
from unpose.nn.layers.attention import GroupSelfAttention, LiftingSelfAttention
from unpose.nn.layers.convolution import GroupConv2d
from unpose.nn.layers.encodings import HarmonicEncoding, SeparableEncoding
from unpose.nn.layers.invariant_attention import InvariantAttentionBlock, OrbitEmbedding
from unpose.nn.layers.norm_and_pooling import ChannelNorm, GroupPool, PointwiseLinear, SpatialPool
from unpose.nn.networks.base import Network, count_parameters
from unpose.nn.networks.enlarge import refined
from unpose.nn.networks.group_cnn import group_cnn
from unpose.nn.networks.gsa import PUBLISHED, GSAConfig, gsa_net
from unpose.nn.networks.patch import patch_net
from unpose.nn.networks.registry import NETWORKS, rebuild
from unpose.nn.networks.scale import scale_net, scale_pyramid
from unpose.nn.networks.swivel import swivel_net
from unpose.nn.ops.dispatch import implementation

__all__ = [
    "NETWORKS",
    "PUBLISHED",
    "Attended",
    "ChannelNorm",
    "GSAConfig",
    "GroupConv2d",
    "GroupPool",
    "GroupSelfAttention",
    "HarmonicEncoding",
    "InvariantAttentionBlock",
    "LiftingSelfAttention",
    "Network",
    "OrbitEmbedding",
    "PointwiseLinear",
    "SeparableEncoding",
    "SpatialPool",
    "count_parameters",
    "estimate_memory",
    "group_attention",
    "group_cnn",
    "gsa_net",
    "implementation",
    "orbit_attention",
    "patch_net",
    "position_table",
    "rebuild",
    "refined",
    "scale_net",
    "scale_pyramid",
    "swivel_net",
]
