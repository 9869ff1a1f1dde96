"""How images, clips and features become frames: pixels, numbers, or the features of a pre-trained encoder.

Shapes: T frames, H height, W width, C channels, F features, h and w the height and width of the grid of an encoder.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from weft.data.manifest import media_file
from weft.errors import DataError
from weft.media.containers import video_format
from weft.media.files import MediaFile, import_extra
from weft.media.images import array_shape, image_array, is_array_file, opened_image, read_array, read_image
from weft.media.video import MAX_FRAMES, FrameSelection, frame_size, read_video
from weft.models.caption_config import FrameShape

if TYPE_CHECKING:
    from torch import Tensor

    from weft.tasks.captioning.vision_encoder import VisionEncoder

Media = Literal["image", "video", "features"]
ANIMATIONS = ("GIF", "WEBP", "PNG", "AVIF")


def detect_media(file: MediaFile) -> Media:
    """What a file is, by its content."""
    if not file.member and file.path.is_dir():
        return "video"
    if is_array_file(file):
        return "video" if len(array_shape(file)) == 4 else "features"
    if video_format(file.read(16)) is not None:
        return "video"
    with opened_image(file) as image:
        picture: Any = image
        return "video" if image.format in ANIMATIONS and picture.n_frames > 1 else "image"


class EncoderOptions(NamedTuple):
    """A pre-trained encoder, and the grid of features that it makes of an image."""

    directory: str
    content: str  # SHA-256
    grid: tuple[int, int]  # h, w


@dataclass(frozen=True)
class FrameOptions:
    """What a frame is, and how files become frames."""

    media: Media
    size: tuple[int, int] = (0, 0)  # height, width; of pixels
    channels: int = 3
    num_features: int = 0
    max_frames: int = 1
    frame_rate: float | None = None
    resize: Literal["stretch", "crop", "pad"] = "stretch"
    encoder: EncoderOptions | None = None  # a frame is a cell of its grid or, of a clip, the mean of a grid

    @property
    def shape(self) -> FrameShape:
        if self.media == "features" or self.encoder is not None:
            return FrameShape(None, self.num_features)
        return FrameShape((*self.size, self.channels), is_clip=self.media == "video")

    @property
    def max_positions(self) -> int:
        """The maximum number of frames of a file, as the model sees them."""
        if self.encoder is not None and self.media == "image":
            return self.encoder.grid[0] * self.encoder.grid[1]
        return self.max_frames


class CaptionFrames(Protocol):
    """Reads files and values in memory as frames."""

    @property
    def options(self) -> FrameOptions: ...

    @property
    def skips_errors(self) -> bool: ...

    @property
    def dtype(self) -> str: ...

    @property
    def width(self) -> int: ...

    def read(self, file: MediaFile) -> np.ndarray: ...

    def from_memory(self, value: object) -> np.ndarray: ...

    def pictures(self, value: object, frames: np.ndarray) -> np.ndarray | None:
        """The images (T, H, W, C), uint8, that the model saw of an input; None for features."""

    def provenance(self) -> dict[str, Any]: ...


# ---- pixels


def read_pixels(file: MediaFile, options: FrameOptions, size: tuple[int, int] | None) -> np.ndarray:
    """Pixels (T, H, W, C) of an image or a clip, uint8, of `size`; None for the size of the first frame."""
    if options.media == "image":
        if (not file.member and file.path.is_dir()) or video_format(file.read(16)) is not None:
            raise DataError(str(file), "is a clip, but this run reads images", 'set data.media = "video"')
        return read_image(file, size=size, channels=options.channels, resize=options.resize)[None]
    return read_video(
        file,
        size=size or frame_size(file),
        channels=options.channels,
        max_frames=options.max_frames,
        frame_rate=options.frame_rate,
        resize=options.resize,
    )


def pixels_in_memory(value: object, options: FrameOptions, size: tuple[int, int] | None) -> list[np.ndarray]:
    """Pixels (H, W, C) of each frame of an image or a clip in memory: a Pillow image or its array (H, W) or (H, W, C); an array
    (T, H, W, C) or a list of images is a clip."""
    is_clip = isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 4)
    images: Sequence[Any] = value if is_clip else [value]  # type: ignore[assignment]
    if not len(images):
        raise DataError("input", "no frames")
    if len(images) > 1 and options.media == "image":
        raise DataError("input", f"{len(images)} frames, but this run reads images")
    selected = FrameSelection(options.max_frames).select(MediaFile(Path("input")), range(len(images))).tolist()
    return [image_array(images[index], size=size, channels=options.channels, resize=options.resize) for index in selected]


@dataclass(frozen=True)
class CaptionReader:
    """Reads images and clips as uint8 frames of H * W * C pixels, features as float32 frames of F numbers."""

    options: FrameOptions
    skips_errors: bool = False

    @property
    def dtype(self) -> str:
        return "<f4" if self.options.media == "features" else "|u1"

    @property
    def width(self) -> int:
        options = self.options
        return options.num_features if options.media == "features" else options.size[0] * options.size[1] * options.channels

    def read(self, file: MediaFile) -> np.ndarray:
        if self.options.media == "features":
            return self._limited(read_array(file), str(file))
        frames = read_pixels(file, self.options, self.options.size)
        return frames.reshape(len(frames), -1)

    def from_memory(self, value: object) -> np.ndarray:
        """An image or a clip, as in `pixels_in_memory`. Features are an array (T, F) or (F,)."""
        if self.options.media == "features":
            return self._limited(features_in_memory(value, "input"), "input")
        frames = pixels_in_memory(value, self.options, self.options.size)
        return np.stack([frame.reshape(-1) for frame in frames])

    def pictures(self, value: object, frames: np.ndarray) -> np.ndarray | None:
        pixels = self.options.shape.pixels
        return None if pixels is None else frames.reshape(len(frames), *pixels)

    def _limited(self, features: np.ndarray, where: str) -> np.ndarray:
        """Features of at most `max_frames` positions."""
        if features.shape[1] != self.options.num_features:
            problem = f"{features.shape[1]:,} features per position, but this run reads {self.options.num_features:,}"
            raise DataError(where, problem)
        if len(features) > self.options.max_frames:
            fix = "increase data.max_frames, or save fewer positions"
            raise DataError(
                where, f"{len(features):,} positions are more than data.max_frames ({self.options.max_frames:,})", fix
            )
        return features

    def provenance(self) -> dict[str, Any]:
        options = {name: value for name, value in vars(self.options).items() if name != "encoder"}
        return {**options, "on_error": self.skips_errors}


def features_in_memory(value: object, where: str) -> np.ndarray:
    """Features (T, F), float32, of an array (T, F) or (F,)."""
    array = np.asarray(value)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiub" or not array.size:
        raise DataError(where, "expected a path, or an array of shape (positions, features)")
    features = array.astype(np.float32).reshape(-1, array.shape[-1])
    if not np.isfinite(features).all():
        raise DataError(where, "some values are NaN or infinite")
    return features


def file_in_memory(value: object, media: Media | None, where: str) -> bytes:
    """The content of a file with a value in memory: an image (PNG), a clip, or features (.npy). It becomes the same frames."""
    array = np.asarray(value) if media == "features" or isinstance(value, np.ndarray) else None
    if array is not None and (media == "features" or array.ndim < 2):
        return _array_bytes(features_in_memory(array, where))
    if array is not None and media is None and array.ndim == 2 and array.dtype.kind == "f":
        fix = 'set data.media to "features" or "image"'
        raise DataError(where, "an array (T, F) of features or an image of shades of gray", fix)
    try:
        frames = pixels_in_memory(value, FrameOptions(media or "video", max_frames=MAX_FRAMES), None)
    except DataError as error:
        raise DataError(where, error.problem, error.fix) from None
    if len({frame.shape for frame in frames}) > 1:
        raise DataError(where, "the frames of a clip have different sizes", "resize them")
    is_clip = isinstance(value, list) or (array is not None and array.ndim == 4)
    if is_clip and media != "image":
        return _array_bytes(np.stack(frames))
    content = io.BytesIO()
    import_extra("PIL.Image", "Pillow", "images").fromarray(frames[0]).save(content, "PNG", compress_level=1)
    return content.getvalue()


def _array_bytes(array: np.ndarray) -> bytes:
    """A .npy file."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=False)
    return content.getvalue()


# ---- features of a pre-trained encoder


@dataclass(frozen=True)
class EncodedReader:
    """Reads images as the grid of features of an encoder, h * w frames of F numbers, and clips as the mean of the grid of each
    frame, T frames."""

    options: FrameOptions
    encoder: VisionEncoder
    skips_errors: bool = False
    dtype: str = "<f4"

    @property
    def width(self) -> int:
        return self.options.num_features

    def images(self, value: object) -> list[Any]:
        """The Pillow images of a file or a value in memory, of their own size."""
        if isinstance(value, MediaFile):
            frames: Sequence[np.ndarray] = read_pixels(value, self.options, None)  # type: ignore[assignment]
        elif isinstance(value, str | Path):
            return self.images(media_file(str(value), Path()))
        else:
            frames = pixels_in_memory(value, self.options, None)
        pillow = import_extra("PIL.Image", "Pillow", "images")
        return [pillow.fromarray(frame) for frame in frames]

    def read(self, file: MediaFile) -> np.ndarray:
        return self._frames(self.images(file), str(file))

    def from_memory(self, value: object) -> np.ndarray:
        return self._frames(self.images(value), "input")

    def _frames(self, images: list[Any], where: str) -> np.ndarray:
        features = self.encoder.encode(images)
        expected = None if self.options.encoder is None else self.options.encoder.grid
        if features.shape[1:3] != expected and self.options.media == "image":
            problem = "a grid of {} x {} features, but this run reads {} x {}".format(*features.shape[1:3], *(expected or ()))
            raise DataError(where, problem, "use an encoder whose preprocessor crops images to one size")
        frames: np.ndarray = self.as_frames(features)
        return frames

    def as_frames(self, features: Any) -> Any:
        """Features (T, h, w, F), an array or a tensor, as frames."""
        return features[0].reshape(-1, self.width) if self.options.media == "image" else features.mean((1, 2))

    def prepared(self, value: object) -> Tensor:
        """The pixels (T, 3, H, W) that the encoder reads of an input."""
        return self.encoder.prepare(self.images(value))

    def pictures(self, value: object, frames: np.ndarray) -> np.ndarray | None:
        return self.encoder.shown(self.prepared(value))

    def provenance(self) -> dict[str, Any]:
        content = "" if self.options.encoder is None else self.options.encoder.content
        options = vars(replace(self.options, encoder=None))
        return {**options, "encoder": content, "on_error": self.skips_errors}
