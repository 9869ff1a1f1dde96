"""Reading images and arrays: values, sizes, color modes and orientation; damaged, lying and huge files."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
import zlib

import numpy as np
import pytest
from media_files import encoded, gradient, media, mutants, problem_of
from PIL import Image

from weft.errors import DataError
from weft.media.files import MediaFile
from weft.media.images import FORMATS, IMAGE_SUFFIXES, MAX_PIXELS, TRANSPOSE, image_array, read_array, read_image

LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "PPM": {}, "WEBP": {"lossless": True}, "GIF": {}}


def read(file: MediaFile, size=(12, 20), channels=3, **options) -> np.ndarray:
    return read_image(file, size=size, channels=channels, **options)


@pytest.mark.parametrize("format_name", LOSSLESS)
def test_lossless_formats(tmp_path, format_name):
    pixels = gradient(12, 20) // 64 * 64  # few colors: GIF has 256
    actual = read(media(tmp_path, encoded(pixels, format_name, **LOSSLESS[format_name])))
    assert actual.dtype == np.uint8 and actual.shape == (12, 20, 3)
    np.testing.assert_array_equal(actual, pixels)


@pytest.mark.parametrize("format_name", ["JPEG", "WEBP", "JPEG2000", "AVIF"])
def test_lossy_formats(tmp_path, format_name):
    actual = read(media(tmp_path, encoded(gradient(12, 20), format_name)))
    assert np.abs(actual.astype(int) - gradient(12, 20)).mean() < 12


def test_every_format_is_tested_and_has_a_suffix():
    assert {*LOSSLESS, "JPEG", "WEBP", "JPEG2000", "AVIF"} == set(FORMATS)
    known = Image.registered_extensions()
    assert all(known[suffix] in FORMATS for suffix in IMAGE_SUFFIXES)


def test_member_of_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("a/b.png", encoded(gradient(12, 20), "PNG"))
    np.testing.assert_array_equal(read(MediaFile(tmp_path / "images.zip", "a/b.png")), gradient(12, 20))


def test_grayscale_and_color_are_converted_to_each_other(tmp_path):
    gray = gradient(12, 20, 1)
    np.testing.assert_array_equal(read(media(tmp_path, encoded(gray, "PNG")), channels=1), gray)
    np.testing.assert_array_equal(read(media(tmp_path, encoded(gray, "PNG"))), gray.repeat(3, -1))
    color = gradient(12, 20)
    luma = (color @ np.array([299, 587, 114]) / 1000)[..., None]  # ITU-R 601
    assert np.abs(read(media(tmp_path, encoded(color, "PNG")), channels=1) - luma).max() <= 1


def test_sixteen_bits_and_one_bit(tmp_path):
    values = np.array([[0, 257 * 100, 65535], [257 * 7, 257 * 200, 256]], np.uint16)
    for format_name in ("PNG", "TIFF"):
        content = encoded(Image.fromarray(values), format_name)
        assert read(media(tmp_path, content), (2, 3), 1)[..., 0].tolist() == [[0, 100, 255], [7, 200, 0]]
    content = encoded(Image.fromarray(values // 257 > 50), "PNG")
    assert read(media(tmp_path, content), (2, 3), 1)[..., 0].tolist() == [[0, 255, 255], [0, 255, 0]]


def test_floats_without_a_range_are_refused(tmp_path):
    content = encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF")
    problem = "file: cannot be decoded: pixels of mode F have no fixed range; save 8-bit or 16-bit pixels"
    assert problem_of(lambda: read(media(tmp_path, content))) == problem
    content = encoded(Image.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF")
    assert "mode I have no fixed range" in problem_of(lambda: read(media(tmp_path, content)))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white(tmp_path, mode):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 2, 4))
    image = image.quantize(4) if mode == "P" else image.convert(mode)
    actual = read(media(tmp_path, encoded(image, "PNG")), (4, 4))
    assert actual[:, :2].max() == 0 and actual[:, 2:].min() == 255


def test_half_transparent_pixels_are_mixed_with_white(tmp_path):
    content = encoded(Image.new("RGBA", (2, 2), (200, 0, 100, 128)), "PNG")
    assert read(media(tmp_path, content), (2, 2))[0, 0].tolist() == pytest.approx([227, 127, 177], abs=1)


def test_transparent_color_of_images_without_alpha(tmp_path):
    content = encoded(Image.new("RGB", (2, 2), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert read(media(tmp_path, content), (2, 2)).min() == 255


def test_cmyk(tmp_path):
    content = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")
    red = read(media(tmp_path, content), (8, 8))[4, 4]
    assert red[0] > 240 and red[1] < 15 and red[2] < 15


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_name", ["PNG", "JPEG"])
def test_exif_orientation(tmp_path, orientation, format_name):
    upright = Image.fromarray(gradient(16, 24))
    inverse = {"ROTATE_270": "ROTATE_90", "ROTATE_90": "ROTATE_270"}
    name = TRANSPOSE.get(orientation)
    stored = upright if name is None else upright.transpose(Image.Transpose[inverse.get(name, name)])
    exif = Image.Exif()
    exif[0x0112] = orientation
    actual = read(media(tmp_path, encoded(stored, format_name, exif=exif)), (16, 24))
    assert np.abs(actual.astype(int) - gradient(16, 24)).max() <= (0 if format_name == "PNG" else 30)


def test_stretch_crop_and_pad(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200  # the center third
    file = media(tmp_path, encoded(pixels, "PNG"))
    stretched, cropped, padded = (read(file, (10, 10), resize=resize)[..., 0] for resize in ("stretch", "crop", "pad"))
    assert stretched[:, 0].max() < 10 and stretched[:, 5].min() > 190 and stretched[:, 9].max() < 10
    assert (cropped == 200).all()
    assert (padded[:3] == 127).all() and (padded[7:] == 127).all() and padded[4, 0] < 10 and padded[4, 5] > 180


def test_resizing_averages_pixels(tmp_path):
    checkerboard = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    actual = read(media(tmp_path, encoded(checkerboard[..., None], "PNG")), (8, 8), 1)
    assert np.abs(actual[1:-1, 1:-1].astype(int) - 127).max() <= 2  # without antialiasing 0 or 255


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_extreme_aspect_ratios(tmp_path, resize):
    for size in ((1, 200_000), (200_000, 1)):
        file = media(tmp_path, encoded(np.full((*size, 1), 9, np.uint8), "PNG"))
        assert read(file, (6, 6), 1, resize=resize).shape == (6, 6, 1)


def test_wrong_number_of_channels(tmp_path):
    with pytest.raises(ValueError, match="images: expected 1 or 3 channels, got 4"):
        read(media(tmp_path, encoded(gradient(2, 2), "PNG")), channels=4)


def png_of(width: int, height: int) -> bytes:
    """A PNG file whose header claims a size and that has no pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(8193, 8192), (9500, 9500)])  # Pillow warns of the second
def test_large_images_are_refused_by_their_headers(tmp_path, size):
    problem = f"file: {size[0]:,} x {size[1]:,} pixels exceed the limit of {MAX_PIXELS:,}; make the image smaller"
    assert problem_of(lambda: read(media(tmp_path, png_of(*size)))) == problem


def test_decompression_bombs_are_refused(tmp_path):
    problem = problem_of(lambda: read(media(tmp_path, png_of(2**31 - 1, 2**31 - 1))))
    assert problem.startswith("file: refused as a decompression bomb: ")


def test_images_without_pixels_are_refused(tmp_path):
    assert problem_of(lambda: read(media(tmp_path, png_of(0, 5))))
    assert problem_of(lambda: image_array(Image.new("RGB", (0, 5)), size=(2, 2), channels=3)) == (
        "image: an image of 0 x 5 pixels is empty"
    )


def test_files_that_are_not_images(tmp_path):
    formats = "PNG, JPEG, GIF, WEBP, BMP, TIFF, PPM, JPEG2000, AVIF"
    for content in (b"a text", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n", b"\0" * 100):
        problem = problem_of(lambda content=content: read(media(tmp_path, content)))
        assert problem == f"file: not an image; use one of these formats: {formats}"
    assert problem_of(lambda: read(media(tmp_path, b""))) == "file: empty file"
    assert problem_of(lambda: read(MediaFile(tmp_path / "missing.png"))) == "missing.png: file not found"


def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)


@pytest.mark.parametrize("format_name", ["PNG", "JPEG", "BMP", "TIFF", "PPM", "WEBP", "JPEG2000"])
def test_truncated_images(tmp_path, format_name):
    content = encoded(noise(), format_name)
    for length in (4, 20, len(content) // 3, len(content) * 2 // 3):
        assert problem_of(lambda length=length: read(media(tmp_path, content[:length])))


def test_truncated_image_message(tmp_path):
    content = encoded(noise(), "JPEG")
    problem = problem_of(lambda: read(media(tmp_path, content[: len(content) * 2 // 3])))
    assert problem.startswith("file: cannot be decoded: image file is truncated (")


@pytest.mark.parametrize("format_name", FORMATS)
def test_mutants_give_pixels_or_data_errors(tmp_path, format_name):
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if format_name in ("PNG", "JPEG", "WEBP") else {}
    content = encoded(gradient(12, 20) // 64 * 64, format_name, **options)
    outcomes = []
    for mutant in mutants(content, 80):
        file = media(tmp_path, mutant)
        outcomes.append(problem_of(lambda file=file: read(file)))
    assert sum(map(bool, outcomes)) > 10  # anything but a DataError fails above
    assert all(len(problem.split("\n")) == 1 for problem in outcomes)


def test_images_from_python():
    pixels = gradient(6, 8)
    assert image_array(pixels, size=(6, 8), channels=3) is pixels
    np.testing.assert_array_equal(image_array(Image.fromarray(pixels), size=(6, 8), channels=3), pixels)
    np.testing.assert_array_equal(image_array(pixels / 255, size=(6, 8), channels=3), pixels)
    np.testing.assert_array_equal(image_array(pixels[..., 0], size=(6, 8), channels=1), pixels[..., :1])
    np.testing.assert_array_equal(image_array(pixels[..., :1], size=(6, 8), channels=3), pixels[..., :1].repeat(3, -1))
    transparent = np.dstack([pixels, np.zeros((6, 8), np.uint8)])
    assert image_array(transparent, size=(6, 8), channels=3).min() == 255
    by_pillow = image_array(Image.fromarray(pixels), size=(3, 4), channels=1, resize="crop")
    np.testing.assert_array_equal(image_array(pixels, size=(3, 4), channels=1, resize="crop"), by_pillow)


def test_file_and_image_from_python_are_equal(tmp_path):
    image = Image.new("RGBA", (30, 20), (9, 99, 199, 100))
    file = media(tmp_path, encoded(image, "PNG"))
    np.testing.assert_array_equal(image_array(image, size=(8, 8), channels=3), read(file, (8, 8)))


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("cat.png", "image: expected a Pillow image or a NumPy array, got str"),
        (
            np.zeros((2, 3, 5), np.uint8),
            "image: an array of shape (2, 3, 5) is not an image; use the shape (height, width) or (height, width, channels)",
        ),
        (
            np.zeros((0, 3), np.uint8),
            "image: an array of shape (0, 3) is not an image; use the shape (height, width) or (height, width, channels)",
        ),
        (np.zeros((2, 3), np.int64), "image: pixels of type int64; use uint8, or floats from 0 to 1"),
        (np.full((2, 3), 255.0), "image: pixels are from 255 to 255; use uint8, or floats from 0 to 1"),
        (np.full((2, 3), np.nan), "image: pixels are from nan to nan; use uint8, or floats from 0 to 1"),
    ],
)
def test_images_from_python_that_are_refused(image, problem):
    assert problem_of(lambda: image_array(image, size=(2, 3), channels=3)) == problem


def test_damaged_image_from_python():
    content = encoded(noise(), "JPEG")
    image = Image.open(io.BytesIO(content[: len(content) * 2 // 3]))
    assert problem_of(lambda: image_array(image, size=(2, 3), channels=3)).startswith("image: cannot be decoded: image file is")


def test_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    problem = problem_of(lambda: read(media(tmp_path, encoded(gradient(2, 2), "PNG"))))
    assert problem == "images: requires the package Pillow; run pip install Pillow"


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", "i1", ">i8", "u1", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_number_type(tmp_path, dtype, order):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype, order=order)
    actual = read_array(media(tmp_path, saved(array)))
    assert actual.dtype == np.float32 and actual.flags.c_contiguous
    np.testing.assert_array_equal(actual, [[0, 1, 1], [1, 0, 1]])


def test_array_of_one_dimension_is_one_position(tmp_path):
    np.testing.assert_array_equal(read_array(media(tmp_path, saved(np.arange(3.0)))), [[0, 1, 2]])


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array([{}, 1], object), "file: values of type object; save an array of numbers"),
        (np.array(["a"]), "file: values of type <U1; save an array of numbers"),
        (np.zeros(2, complex), "file: values of type complex128; save an array of numbers"),
        (np.zeros((2, 0)), "file: an array of shape (2, 0); save an array of shape (positions, features)"),
        (np.zeros((2, 2, 2)), "file: an array of shape (2, 2, 2); save an array of shape (positions, features)"),
        (np.array(1.0), "file: an array of shape (); save an array of shape (positions, features)"),
        (np.array([1.0, np.nan]), "file: some values are NaN or infinite as 32-bit floats"),
        (np.array([1e300]), "file: some values are NaN or infinite as 32-bit floats"),
    ],
)
def test_arrays_that_are_refused(tmp_path, array, problem):
    assert problem_of(lambda: read_array(media(tmp_path, saved(array)))) == problem


def test_array_headers_that_lie(tmp_path):
    content = saved(np.zeros((3, 4)))
    for rows, promised in ((9, 288), (2, 64)):
        lying = content.replace(b"(3, 4)", b"(%d, 4)" % rows)
        problem = f"file: the header promises {promised} bytes of values, the file has 96; write the file again"
        assert problem_of(lambda lying=lying: read_array(media(tmp_path, lying))) == problem
    negative = content.replace(b"(3, 4), }  ", b"(-3, -4), }")
    assert problem_of(lambda: read_array(media(tmp_path, negative))).startswith("file: an array of shape (-3, -4); save")
    huge = content.replace(b"(3, 4), }            ", b"(3000000000000, 4), }")
    assert "promises 96,000,000,000,000 bytes" in problem_of(lambda: read_array(media(tmp_path, huge)))
    text = b"{'descr': __import__('os').system('touch x'), 'fortran_order': False, 'shape': (1,), }"
    code = content[:8] + struct.pack("<H", len(text)) + text
    problem = "file: not a .npy file, or its header is damaged; save the array with numpy.save"
    for damaged in (
        code,
        b"text",
        content[:40],
        b"\x93NUMPY\x03\x00" + content[8:],
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
    ):
        assert problem_of(lambda damaged=damaged: read_array(media(tmp_path, damaged))) == problem


def test_mutants_of_arrays(tmp_path):
    content = saved(np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32))
    for mutant in mutants(content, 300):
        file = media(tmp_path, mutant)
        if not problem_of(lambda file=file: read_array(file)):
            assert read_array(file).ndim == 2


def test_errors_name_the_file(tmp_path):
    with pytest.raises(DataError) as caught:
        read(media(tmp_path, b"text", "a.png"))
    assert caught.value.where == str(tmp_path / "a.png")
