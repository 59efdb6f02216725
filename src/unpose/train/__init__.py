"""Training: networks to and from the disk."""

from unpose.train.checkpoint import load_network, save_network

__all__ = ["load_network", "save_network"]
