"""Which way up a picture is: the note that cameras leave in EXIF."""

from PIL import ExifTags, Image, ImageFile

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    """Height and width that an opened picture will have when it is turned upright; no pixel is read."""
    width, height = image.size
    # Pillow turns TIFFs itself. The base class's method: that of PNG would decode the picture to look behind it.
    if image.format != "TIFF" and Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) > 4:
        return width, height
    return height, width


def upright(image: Image.Image) -> Image.Image:
    """A decoded picture turned as its note says."""
    try:
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return image  # the pixels are good, only the notes beside them are damaged
    return image.transpose(_UPRIGHT[turn]) if turn in _UPRIGHT else image
