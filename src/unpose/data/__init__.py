"""Datasets and generators: images and where they come from."""

from unpose.data.posed import Posed, posed

__all__ = ["Posed", "posed"]
