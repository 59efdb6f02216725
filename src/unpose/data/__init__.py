"""Data: images from folders and files, public data sets, and generators of posed images with known poses.

======================== =======================================================================================
:func:`read_folder`      read a folder, a stack or a list of files into one array (``folders``, ``decoding``)
:func:`load`             load a labelled data set by name, from a folder or an ``.npz`` file (``datasets``,
                         ``public``, ``download``), as a :class:`Dataset` of three :class:`Split` parts (``splits``)
:func:`labels_in_file`   classes that an ``.npz`` file holds beside its images
:func:`posed`            make copies of images at random poses, with the true poses
:func:`drawings`         three small drawings without symmetry (``stroke_drawings``)
:func:`credit`           what to cite for a public data set
======================== =======================================================================================

Three modules are doors of their own: ``unpose.data.splits`` has the fingerprints by which a network recognises its
training images, ``unpose.data.survey`` says what would be read, and ``unpose.data.experiments`` has the data of the
figures of the invariant attention paper.
"""

from unpose.data.credits import CREDITS, Credit, credit
from unpose.data.datasets import NAMES, labels_in_file, load
from unpose.data.folders import ImageSet, InputError, read_folder
from unpose.data.posed import Posed, posed
from unpose.data.public import MissingDataError
from unpose.data.splits import Dataset, Split
from unpose.data.stroke_drawings import drawings

__all__ = [
    "CREDITS",
    "NAMES",
    "Credit",
    "Dataset",
    "ImageSet",
    "InputError",
    "MissingDataError",
    "Posed",
    "Split",
    "credit",
    "drawings",
    "labels_in_file",
    "load",
    "posed",
    "read_folder",
]
