"""Networks for which a turned image is the same image: group attention and group convolution."""

from unpose.nn.attention import estimate_memory, group_attention
from unpose.nn.choice import implementation
from unpose.nn.convolution import GroupConv2d
from unpose.nn.encodings import HarmonicEncoding, SeparableEncoding
from unpose.nn.group_cnn import group_cnn
from unpose.nn.gsa_net import PUBLISHED, GSAConfig, gsa_net
from unpose.nn.invariant_attention import InvariantAttentionBlock, OrbitEmbedding
from unpose.nn.layers import ChannelNorm, GroupPool, PointwiseLinear, SpatialPool
from unpose.nn.network import Network, count_parameters
from unpose.nn.networks import NETWORKS, rebuild
from unpose.nn.orbit_kernel import Attended, orbit_attention
from unpose.nn.patch_net import patch_net
from unpose.nn.positions import position_table
from unpose.nn.refine import refined
from unpose.nn.scale_net import scale_net, scale_pyramid
from unpose.nn.self_attention import GroupSelfAttention, LiftingSelfAttention
from unpose.nn.swivel_net import swivel_net

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
