"""Datasets and generators: images and where they come from."""

from unpose.data.credits import CREDITS, Credit, credit
from unpose.data.datasets import NAMES, load
from unpose.data.folders import ImageSet, InputError, read_images
from unpose.data.posed import Posed, posed
from unpose.data.public import MissingData
from unpose.data.splits import Dataset, Split

__all__ = [
    "CREDITS",
    "NAMES",
    "Credit",
    "Dataset",
    "ImageSet",
    "InputError",
    "MissingData",
    "Posed",
    "Split",
    "credit",
    "load",
    "posed",
    "read_images",
]
