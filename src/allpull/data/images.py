"""Any picture as 8-bit RGB, by the ladder simplejpeg → Pillow, with limits before anything large is allocated.

The policy for odd files: CMYK and YCCK become RGB by Pillow's arithmetic, palettes and transparency are resolved by
dropping alpha, 16 bits become 8 by division by 257, of animations the first frame is taken, orientation in EXIF is
left as it is (as torchvision does). Truncated, empty and unknown files, and those above the limit of pixels, are
refused with the reason.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from allpull.data.jpeg.header import NotJpeg, parse_jpeg
from allpull.data.pack_format import MAX_SIDE, Buffer
from allpull.errors import MissingPart

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

MAX_SOURCE_BYTES = 1 << 29  # of one file: a larger one is not an image
MAX_PIXELS = 1 << 26  # 67 megapixels, 201 MB as RGB: more than any photograph of the usual sets
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")  # Pillow knows odder and less tested ones
SIXTEEN_BITS = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})
INSTALL = "pip install 'allpull[data]'"


class Refused(ValueError):
    """A sample that cannot be packed; the message is the reason, in words that are the same for the same fault."""


def decode(data: Buffer, *, max_pixels: int = MAX_PIXELS) -> tuple[Pixels, str]:
    """Pixels [height, width, 3], and what was odd about the picture ("" where the fast decoder took it).

    Raises:
        Refused: it is no picture, is damaged, or has more than ``max_pixels``.
        MissingPart: Pillow or simplejpeg is not installed.
    """
    if len(data) == 0:
        raise Refused("empty file")
    simplejpeg = import_simplejpeg()
    try:
        header = parse_jpeg(data)
    except NotJpeg:
        return _by_pillow(data, max_pixels)
    check_size(header.height, header.width, max_pixels)
    if header.precision == 8 and len(header.components) in (1, 3):
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
        except ValueError:  # also what libjpeg only warns of
            pixels, odd = _by_pillow(data, max_pixels)
            return pixels, odd or "JPEG that strict decoders refuse"
        return pixels, ""
    return _by_pillow(data, max_pixels)


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Refuse sizes that are too large to decode, before they are.

    Raises:
        Refused: more than ``max_pixels``, or a side longer than JPEG can say.
    """
    if height * width > max_pixels:
        raise Refused(f"more than {max_pixels:,} pixels")
    if max(height, width) > MAX_SIDE:
        raise Refused(f"a side longer than {MAX_SIDE:,} pixels")


def _by_pillow(data: Buffer, max_pixels: int) -> tuple[Pixels, str]:
    image_module = import_pillow()
    try:
        formats = [one for one in FORMATS if one in image_module.OPEN]  # WebP is an option of Pillow's
        with image_module.open(io.BytesIO(data), formats=formats) as image:
            check_size(image.height, image.width, max_pixels)
            odd = _oddity(image)
            image.load()
            return _as_rgb(image), odd
    except Refused:
        raise
    except image_module.DecompressionBombError as error:
        raise Refused(f"more than {max_pixels:,} pixels") from error
    except MemoryError as error:
        raise Refused("not enough memory to decode it") from error
    except Exception as error:  # Pillow's plug-ins raise whatever damaged files provoke
        name = type(error).__name__
        unknown = name == "UnidentifiedImageError"
        raise Refused("not a picture" if unknown else f"truncated or damaged ({name})") from error


def _oddity(image: Image) -> str:
    if image.format not in ("JPEG", "MPO"):
        return f"{image.format} of mode {image.mode}"
    return f"JPEG of mode {image.mode}" if image.mode not in ("RGB", "L") else ""


def _as_rgb(image: Image) -> Pixels:
    if image.mode in SIXTEEN_BITS:
        grey = (np.asarray(image).astype(np.int64).clip(0, 65535) + 128) // 257
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise Refused("a picture of floating-point numbers: make an array of it")
    return np.array(image.convert("RGB"))


def resized(pixels: Pixels, short_side: int) -> Pixels:
    """``pixels`` with the shorter side made ``short_side`` by an antialiased bicubic filter; never made larger."""
    height, width = pixels.shape[:2]
    if min(height, width) <= short_side:
        return pixels
    scale = short_side / min(height, width)
    size = max(short_side, round(width * scale)), max(short_side, round(height * scale))
    image_module = import_pillow()
    return np.array(image_module.fromarray(pixels).resize(size, image_module.Resampling.BICUBIC))


def encode_jpeg(pixels: Pixels, quality: int, interval: int) -> bytes:
    """A baseline 4:2:0 JPEG of ``pixels`` [height, width, 3] with a restart marker each ``interval`` units."""
    file = io.BytesIO()
    options = {"subsampling": "4:2:0", "optimize": True, "restart_marker_blocks": interval}
    import_pillow().fromarray(pixels).save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def import_pillow() -> Any:
    """``PIL.Image``, asked for nothing but what we ask; with what it warns of being our own business."""
    try:
        from PIL import Image  # noqa: PLC0415  needed only where pictures are decoded
    except ImportError as error:
        raise MissingPart("Pillow is not installed", hint=INSTALL) from error
    Image.init()  # else it finds no plug-in when it is told which to try
    warnings.filterwarnings("ignore", module="PIL")  # of large pictures and odd tags: we count what matters
    return Image


def import_simplejpeg() -> Any:
    """``simplejpeg``."""
    try:
        import simplejpeg  # noqa: PLC0415
    except ImportError as error:
        raise MissingPart("simplejpeg is not installed", hint=INSTALL) from error
    return simplejpeg
