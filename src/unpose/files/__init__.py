"""Files: reads images of many formats, and reads and writes folders of results. This room imports no other room.

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
``texts``           text files that a person gives
``folder``          the door to a folder of results: no link inside it is followed, files are complete or absent
``outputs``         files that the user names, complete or not at all
``exchange``        arrays exchanged with other programs through a temporary folder
``model_files``     which files of models are refused, because they can run code
``byte_sizes``      sizes such as 4GB, and how much memory is free
``arrays``          whole arrays of public data sets
=================== ============================================================================================

``formats``, ``listing``, ``exchange`` and ``arrays`` are doors of their own, for the rooms that read whole folders.

Most users call :func:`unpose.data.read_folder`, which reads a whole folder into one array.
"""

from unpose.files.byte_sizes import available_memory, in_bytes, readable_bytes
from unpose.files.clouds import read_points
from unpose.files.folder import BusyError, Folder, FolderError
from unpose.files.frames import LUMINANCE, UnreadableError, printable_name
from unpose.files.model_files import file_inside, refuse_code
from unpose.files.outputs import output, read_file, write_chunks, write_image, write_text
from unpose.files.pieces import ImagesInPieces, images_in_pieces, open_images, store_images
from unpose.files.texts import read_text

__all__ = [
    "LUMINANCE",
    "BusyError",
    "Folder",
    "FolderError",
    "ImagesInPieces",
    "UnreadableError",
    "available_memory",
    "file_inside",
    "images_in_pieces",
    "in_bytes",
    "open_images",
    "output",
    "printable_name",
    "read_file",
    "read_points",
    "read_text",
    "readable_bytes",
    "refuse_code",
    "store_images",
    "write_chunks",
    "write_image",
    "write_text",
]
