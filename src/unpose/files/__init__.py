"""Files: reads images of many formats and writes files atomically. This room imports no other room.

Where to look:

=================== ============================================================================================
``formats``         which reader takes a file (by its content); header first, then frames
``pictures``        PNG, JPEG, WebP, BMP, GIF, PPM and HEIC, with Pillow; animations
``tiff``            TIFF, with tifffile and Pillow; pages, channels, 16-bit and float colour
``stacks``          arrays of images: ``.npy``, ``.npz``, MRC, HDF5
``pieces``          images that stay on disk and are read in pieces
``zarr``, ``star``  Zarr folders; STAR files that list stacks
``fits``, ``dicom`` images of astronomy and medicine
``frames``          what all readers share: limits, conversion to float32, the error for unreadable files
``clouds``          point clouds: PLY, text and ``.npy``
``listing``         which files of a folder could be images
``atomic``          writing files complete or not at all
``exchange``        arrays exchanged with other programs through a temporary folder
``byte_sizes``      sizes such as 4GB, and how much memory is free
``arrays``          whole arrays of public data sets (a door of its own, for ``unpose.data``)
=================== ============================================================================================

Most users call :func:`unpose.data.read_images`, which reads a whole folder into one array.
"""

from unpose.files.atomic import atomic_file, read_file, write_chunks, write_image, write_text
from unpose.files.byte_sizes import available_memory, in_bytes, readable_bytes
from unpose.files.clouds import read_points
from unpose.files.exchange import exchanged_images, read_numbers
from unpose.files.formats import decoder_limits, read_frames, read_grey, read_header
from unpose.files.frames import LUMINANCE, Header, UnreadableError, as_unreadable_error, printable_name
from unpose.files.listing import ListedFile, Listing, list_images, list_paths, split_array_name
from unpose.files.pieces import ImagesInPieces, images_in_pieces, open_images, store_images

__all__ = [
    "LUMINANCE",
    "Header",
    "ImagesInPieces",
    "ListedFile",
    "Listing",
    "UnreadableError",
    "as_unreadable_error",
    "atomic_file",
    "available_memory",
    "decoder_limits",
    "exchanged_images",
    "images_in_pieces",
    "in_bytes",
    "list_images",
    "list_paths",
    "open_images",
    "printable_name",
    "read_file",
    "read_frames",
    "read_grey",
    "read_header",
    "read_numbers",
    "read_points",
    "readable_bytes",
    "split_array_name",
    "store_images",
    "write_chunks",
    "write_image",
    "write_text",
]
