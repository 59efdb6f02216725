"""Datasets and generators: images and where they come from."""

from unpose.data.folders import ImageSet, InputError, read_images
from unpose.data.posed import Posed, posed

__all__ = ["ImageSet", "InputError", "Posed", "posed", "read_images"]
