"""Images as arrays of pixels, and arrays of features in .npy files.

Files are checked before they are decoded: the size in the header, the formats, the shape of an array. Whatever a damaged or
hostile file contains, the error is a DataError.

Shapes: H height, W width, C channels (1 grayscale, 3 RGB), T positions, F features.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weft.errors import DataError
from weft.media.files import MediaFile, import_extra

if TYPE_CHECKING:
    from PIL import Image as PillowImage

Array = np.ndarray
Resize = Literal["stretch", "crop", "pad"]
# Formats that Pillow decodes itself. Others run programs (EPS calls Ghostscript) or are rare and little tested.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
IMAGE_SUFFIXES = (".png", ".apng", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm", ".jp2", ".avif")
MAX_PIXELS = 1 << 26  # of an image before it is resized: 8192 x 8192
MAX_HEADER_BYTES = 10_000  # of a .npy file, the limit of NumPy
PADDING = 127  # gray, close to 0 after normalization to [-1, 1]
ORIENTATION = 0x0112  # EXIF tag
# what to do with an image of each EXIF orientation: names of PIL.Image.Transpose
TRANSPOSE = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
SIDEWAYS = (5, 6, 7, 8)  # the orientations that exchange height and width


def read_image(file: MediaFile, *, size: tuple[int, int] | None, channels: int, resize: Resize = "stretch") -> Array:
    """Pixels (H, W, C) of an image, uint8, with `size` = (H, W), or of its own size; of an animation, those of the first frame.

    resize: "stretch" shows the whole image without its aspect ratio, "crop" its center, "pad" the whole image on gray.
    Transparent pixels become white, and the EXIF orientation is applied.
    """
    mode = color_mode(channels)
    with opened_image(file) as image:
        return pixels(image, size=size, mode=mode, resize=resize)


def color_mode(channels: int) -> str:
    """Pillow's name of grayscale or RGB images."""
    if channels not in (1, 3):
        raise ValueError(f"images: expected 1 or 3 channels, got {channels}")
    return "L" if channels == 1 else "RGB"


@contextmanager
def pillow_image(file: MediaFile) -> Iterator[PillowImage.Image]:
    """An image of which only the header is decoded. Raises whatever Pillow raises."""
    pillow = import_extra("PIL.Image", "Pillow", "images")
    # Pillow warns of large images, which are refused, of odd metadata, and of its own plans
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pillow.open(file.open(), formats=FORMATS) as image:
            check_pixels(str(file), image.width, image.height)
            yield image


@contextmanager
def opened_image(file: MediaFile) -> Iterator[PillowImage.Image]:
    """The same, but what Pillow raises, also in the block, is a DataError."""
    pillow = import_extra("PIL.Image", "Pillow", "images")
    try:
        with pillow_image(file) as image:
            yield image
    except DataError:
        raise
    except pillow.UnidentifiedImageError:
        raise DataError(str(file), "not an image", f"use one of these formats: {', '.join(FORMATS)}") from None
    except pillow.DecompressionBombError as error:
        raise DataError(str(file), f"refused as a decompression bomb: {one_line(error)}") from None
    except Exception as error:  # decoders raise anything on damaged files: struct.error, SyntaxError, KeyError, ...
        raise DataError(str(file), f"cannot be decoded: {one_line(error)}") from None


def check_pixels(where: str, width: int, height: int) -> None:
    """Refuse images without pixels and decompression bombs."""
    if width < 1 or height < 1:
        raise DataError(where, f"an image of {width} x {height} pixels is empty")
    if width * height > MAX_PIXELS:
        problem = f"{width:,} x {height:,} pixels exceed the limit of {MAX_PIXELS:,}"
        raise DataError(where, problem, "make the image smaller")


def one_line(error: Exception) -> str:
    """The text of an error, without line breaks and numbers."""
    has_number = len(error.args) > 1 and isinstance(error.args[0], int)  # of the system or of FFmpeg, before the text
    return " ".join(str(error.args[1] if has_number else error).split()) or type(error).__name__


def pixels(image: PillowImage.Image, *, size: tuple[int, int] | None, mode: str, resize: Resize = "stretch") -> Array:
    """Pixels (H, W, C) of a Pillow image, uint8, resized to `size` = (H, W), or of its own size. May raise whatever Pillow
    raises."""
    pillow = import_extra("PIL.Image", "Pillow", "images")
    transpose = TRANSPOSE.get(image.getexif().get(ORIENTATION, 1))
    image = _eight_bit(image, mode)
    if transpose is not None:
        image = image.transpose(pillow.Transpose[transpose])
    resized = image if size is None else _resized(image, size, resize)
    return np.array(resized, np.uint8).reshape(resized.height, resized.width, -1)


def _eight_bit(image: PillowImage.Image, mode: str) -> PillowImage.Image:
    """The image in mode "L" or "RGB", with transparent pixels on white."""
    pillow = import_extra("PIL.Image", "Pillow", "images")
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError(f"pixels of mode {image.mode} have no fixed range; save 8-bit or 16-bit pixels")
        image = pillow.fromarray((values // 257).astype(np.uint8))  # 65535 becomes 255
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return image.convert(mode)


def _resized(image: PillowImage.Image, size: tuple[int, int], resize: Resize) -> PillowImage.Image:
    """The image with `size` = (H, W); bicubic, with antialiasing."""
    pillow = import_extra("PIL.Image", "Pillow", "images")
    height, width = size
    if resize == "pad":
        scale = min(width / image.width, height / image.height)
        inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        canvas: PillowImage.Image = pillow.new(image.mode, (width, height), (PADDING,) * len(image.getbands()))
        canvas.paste(image.resize(inner, pillow.Resampling.BICUBIC), ((width - inner[0]) // 2, (height - inner[1]) // 2))
        return canvas
    box = (0.0, 0.0, float(image.width), float(image.height))
    if resize == "crop":
        # the part of the image is selected before it is resized: an image of 1 x 1,000,000 pixels never becomes larger
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
        box = (left, top, min(left + width * scale, image.width), min(top + height * scale, image.height))
    return image.resize((width, height), pillow.Resampling.BICUBIC, box=box)


def image_array(image: object, *, size: tuple[int, int] | None, channels: int, resize: Resize = "stretch") -> Array:
    """Pixels (H, W, C), uint8, of a Pillow image or of an array (H, W) or (H, W, C) of uint8 or of floats from 0 to 1;
    `size` = (H, W), or None for its own size."""
    mode = color_mode(channels)
    if isinstance(image, np.ndarray):
        array = _pixel_array(image)
        if array.shape == (*(size or array.shape[:2]), channels):
            return array
        image = import_extra("PIL.Image", "Pillow", "images").fromarray(array[..., 0] if array.shape[-1] == 1 else array)
    pillow = import_extra("PIL.Image", "Pillow", "images")
    if not isinstance(image, pillow.Image):
        raise DataError("image", f"expected a Pillow image or a NumPy array, got {type(image).__name__}")
    check_pixels("image", image.width, image.height)
    try:
        return pixels(image, size=size, mode=mode, resize=resize)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow decodes on use
        raise DataError("image", f"cannot be decoded: {one_line(error)}") from None


def _pixel_array(image: Array) -> Array:
    """The array as uint8 (H, W, C)."""
    array = image[..., None] if image.ndim == 2 else image
    if array.ndim != 3 or array.shape[-1] not in (1, 3, 4) or not array.size:
        problem = f"an array of shape {image.shape} is not an image"
        raise DataError("image", problem, "use the shape (height, width) or (height, width, channels)")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise DataError("image", f"pixels of type {array.dtype}", "use uint8, or floats from 0 to 1")
    if not (array.min() >= 0.0 and array.max() <= 1.0):  # also false for NaN
        problem = f"pixels are from {array.min():.4g} to {array.max():.4g}"
        raise DataError("image", problem, "use uint8, or floats from 0 to 1")
    return (array * 255).round().astype(np.uint8)


# ---- arrays


def is_array_file(file: MediaFile) -> bool:
    """Whether a file is an array of NumPy, by its name or content."""
    return file.suffix == ".npy" or file.read(16).startswith(b"\x93NUMPY")


def array_shape(file: MediaFile) -> tuple[int, ...]:
    """The shape of the array in a .npy file."""
    return _array_header(file, file.read(2 * MAX_HEADER_BYTES))[1]


def read_clip_array(file: MediaFile) -> Array:
    """Pixels (T, H, W, C) of a .npy file, uint8."""
    values = _array_values(file)
    if values.ndim != 4 or values.dtype != np.uint8 or values.shape[-1] not in (1, 3, 4):
        problem = f"an array of type {values.dtype} and shape {values.shape} is not a clip"
        raise DataError(str(file), problem, "save uint8 (frames, height, width, channels)")
    return values


def read_array(file: MediaFile) -> Array:
    """Features (T, F) of a .npy file, float32; an array of one dimension is (1, F)."""
    values = _array_values(file)
    if values.ndim not in (1, 2):
        raise DataError(str(file), f"an array of shape {values.shape}", "save an array of shape (positions, features)")
    with np.errstate(over="ignore"):  # infinite values are refused below
        features = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(features).all():
        raise DataError(str(file), "some values are NaN or infinite as 32-bit floats")
    return features.reshape(-1, values.shape[-1])


def _array_values(file: MediaFile) -> Array:
    """The array of numbers in a .npy file."""
    content = file.read()
    offset, shape, is_fortran, dtype = _array_header(file, content)
    if dtype.hasobject or dtype.kind not in "fiub":
        raise DataError(str(file), f"values of type {dtype}", "save an array of numbers")
    if not shape or min(shape) < 1:
        raise DataError(str(file), f"an array of shape {shape}", "save an array of shape (positions, features)")
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes != len(content) - offset:
        problem = f"the header promises {num_bytes:,} bytes of values, the file has {len(content) - offset:,}"
        raise DataError(str(file), problem, "write the file again")
    return np.frombuffer(content, dtype, offset=offset).reshape(shape, order="F" if is_fortran else "C")


def _array_header(file: MediaFile, content: bytes) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]]:
    """Offset of the values, shape, whether columns come first, and type. The header is a Python literal, never code."""
    stream = io.BytesIO(content[: 2 * MAX_HEADER_BYTES])
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():  # of headers that Python 2 wrote
            warnings.simplefilter("ignore")
            shape, is_fortran, dtype = readers[np.lib.format.read_magic(stream)](stream, max_header_size=MAX_HEADER_BYTES)
    except Exception:  # ValueError, SyntaxError, RecursionError, KeyError, ...
        raise DataError(str(file), "not a .npy file, or its header is damaged", "save the array with numpy.save") from None
    return stream.tell(), shape, is_fortran, dtype
