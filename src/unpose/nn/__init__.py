"""Networks for which a turned image is the same image: group attention and group convolution."""

from unpose.nn.attention import group_attention
from unpose.nn.convolution import GroupConv2d
from unpose.nn.encodings import HarmonicEncoding, SeparableEncoding
from unpose.nn.group_cnn import group_cnn
from unpose.nn.gsa_net import PUBLISHED, GSAConfig, gsa_net
from unpose.nn.layers import ChannelNorm, GroupPool, PointwiseLinear, SpatialPool
from unpose.nn.network import Network, count_parameters
from unpose.nn.networks import NETWORKS, rebuild
from unpose.nn.positions import position_table
from unpose.nn.scale_net import ScaleConv2d, scale_net
from unpose.nn.self_attention import GroupSelfAttention, LiftingSelfAttention
from unpose.nn.swivel_net import swivel_net

__all__ = [
    "NETWORKS",
    "PUBLISHED",
    "ChannelNorm",
    "GSAConfig",
    "GroupConv2d",
    "GroupPool",
    "GroupSelfAttention",
    "HarmonicEncoding",
    "LiftingSelfAttention",
    "Network",
    "PointwiseLinear",
    "ScaleConv2d",
    "SeparableEncoding",
    "SpatialPool",
    "count_parameters",
    "group_attention",
    "group_cnn",
    "gsa_net",
    "position_table",
    "rebuild",
    "scale_net",
    "swivel_net",
]
