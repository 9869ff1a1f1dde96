"""The [data] section of captioning, and how images, clips and features are read.

What the files are, and their size, is detected from the first one if the run file does not say it. A run has one kind of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.config import training
from weft.data.dataset import Dataset
from weft.data.manifest import MediaRecord, record_location
from weft.errors import ConfigError, DataError, WeftError
from weft.media.containers import video_format
from weft.media.files import MediaFile
from weft.media.images import image_array, opened_image, read_array, read_image
from weft.media.video import FrameSelection, frame_size, read_video
from weft.models.caption_config import FrameShape
from weft.tasks.media_data import MediaDataConfig
from weft.text.reading import FileSummary

Media = Literal["image", "video", "features"]
NOUNS: dict[str, str] = {"image": "images", "video": "clips", "features": "feature arrays"}
MAX_SIZE = 128  # pixels per side, unless the run file says more
MAX_ATTEMPTS = 10  # files that are tried to find out what they are
ANIMATIONS = ("GIF", "WEBP", "PNG", "AVIF")


def detect_media(file: MediaFile) -> Media:
    """What a file is, by its content."""
    if not file.member and file.path.is_dir():
        return "video"
    head = file.read(16)
    if file.suffix == ".npy" or head.startswith(b"\x93NUMPY"):
        return "features"
    if video_format(head) is not None:
        return "video"
    with opened_image(file) as image:
        picture: Any = image
        return "video" if image.format in ANIMATIONS and picture.n_frames > 1 else "image"


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

    @property
    def shape(self) -> FrameShape:
        if self.media == "features":
            return FrameShape(None, self.num_features)
        return FrameShape((*self.size, self.channels), is_clip=self.media == "video")


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
        options = self.options
        if options.media == "features":
            return self._limited(read_array(file), str(file))
        if options.media == "image":
            if (not file.member and file.path.is_dir()) or video_format(file.read(16)) is not None:
                raise DataError(str(file), "is a clip, but this run reads images", 'set data.media = "video"')
            image = read_image(file, size=options.size, channels=options.channels, resize=options.resize)
            return image.reshape(1, -1)
        clip = read_video(
            file,
            size=options.size,
            channels=options.channels,
            max_frames=options.max_frames,
            frame_rate=options.frame_rate,
            resize=options.resize,
        )
        return clip.reshape(len(clip), -1)

    def from_memory(self, value: object) -> np.ndarray:
        """A Pillow image or its array (H, W) or (H, W, C); an array (T, H, W, C) or a list of images is a clip. Features are
        an array (T, F) or (F,)."""
        options = self.options
        if options.media == "features":
            array = np.asarray(value)
            if array.ndim not in (1, 2) or array.dtype.kind not in "fiub" or not array.size:
                raise DataError("input", "expected a path, or an array of shape (positions, features)")
            features = array.astype(np.float32).reshape(-1, array.shape[-1])
            if not np.isfinite(features).all():
                raise DataError("input", "some values are NaN or infinite")
            return self._limited(features, "input")
        is_clip = isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 4)
        images: Sequence[Any] = value if is_clip else [value]  # type: ignore[assignment]
        if not len(images):
            raise DataError("input", "no frames")
        if len(images) > 1 and options.media == "image":
            raise DataError("input", f"{len(images)} frames, but this run reads images")
        selected = FrameSelection(options.max_frames).select(MediaFile(Path("input")), range(len(images))).tolist()
        frames = [
            image_array(images[index], size=options.size, channels=options.channels, resize=options.resize)
            for index in selected
        ]
        return np.stack([frame.reshape(-1) for frame in frames])

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
        return {**vars(self.options), "on_error": self.skips_errors}


class CaptionDataConfig(MediaDataConfig):
    """Images, clips or features with their texts, listed in a manifest."""

    media: Media | None = None
    """What the files are; features are .npy files. Default: as the first file shows."""
    image_size: int | list[int] | None = None
    """Pixels of a frame: [height, width], or one number for both. Default: those of the first file, at most 128."""
    channels: Literal[1, 3] = 3
    """1 for grayscale, 3 for RGB."""
    resize: Literal["stretch", "crop", "pad"] = "stretch"
    """How images of another shape become frames: distorted, cropped, or padded with gray."""
    max_frames: int = Field(100, ge=1, le=100_000)
    """Maximum number of frames of a clip, chosen at equal distances, and of positions of features."""
    frame_rate: float | None = Field(None, gt=0, le=1000)
    """Frames per second that are used of a clip. Default: all."""
    num_features: int | None = Field(None, ge=1, le=1 << 20)
    """Features per position. Default: those of the first file."""
    max_length: int = Field(200, ge=2, le=2**31 - 1)
    """Maximum length of a text in tokens, including special tokens."""

    @model_validator(mode="after")
    def check_sizes(self) -> Self:
        given = 1 if self.image_size is None else self.image_size
        sizes = given if isinstance(given, list) else [given] * 2
        if len(sizes) != 2 or not all(1 <= size <= 4096 for size in sizes):
            raise invalid("image_size", f"expected [height, width] or one number, from 1 to 4096, got {self.image_size}")
        return self

    @model_validator(mode="after")
    def check_media(self) -> Self:
        if (unused := self._unused_option()) is not None:
            raise invalid(unused, f"not used with media {self.media!r}", "remove it")
        return self

    def _unused_option(self) -> str | None:
        """An option that is set, but that files of this kind do not have."""
        kinds = {"image_size": ("image", "video"), "frame_rate": ("video",), "num_features": ("features",)}
        options = (name for name, media in kinds.items() if self.media not in (None, *media))
        return next((name for name in options if getattr(self, name) is not None), None)

    @property
    def is_detected(self) -> bool:
        """Whether it is known what a frame is."""
        size = self.num_features if self.media == "features" else self.image_size
        return self.media is not None and size is not None

    def with_detected(self) -> Self:
        if self.is_detected:
            return self
        try:
            config = self.model_copy(update=self._detect())
        except (WeftError, OSError):
            return self
        if (unused := config._unused_option()) is not None:
            raise ConfigError(
                f"data.{unused}", f"not used, because the files are {NOUNS[config.media or 'image']}", "remove it"
            )
        return config

    def _files(self) -> Iterator[MediaRecord]:
        """The first records of the training data."""
        dataset: Dataset[MediaRecord] = training(self.sources(Path()))
        return islice(dataset.format.read(dataset.inputs, FileSummary(list(dataset.inputs), self.encoding)), MAX_ATTEMPTS)

    def _detect(self) -> dict[str, Any]:
        """The options that follow from the first file that can be read."""
        problem: DataError | None = None
        for record in self._files():
            try:
                return self._describe(record.media)
            except DataError as error:
                problem = problem or DataError(record_location(record), str(error))
        if problem is not None:
            raise problem
        return {}  # no records: the manifest itself is refused when it is read

    def _describe(self, file: MediaFile) -> dict[str, Any]:
        media = self.media or detect_media(file)
        if media == "features":
            return {"media": media, "num_features": self.num_features or read_array(file).shape[1]}
        if self.image_size is not None:
            return {"media": media}
        return {"media": media, "image_size": [min(side, MAX_SIZE) for side in frame_size(file)]}

    def frames(self) -> FrameOptions:
        """What a frame is; an image of 128 x 128 pixels if the files cannot be read."""
        config = self.with_detected()
        if not config.is_detected:
            default = {"media": "image", "image_size": MAX_SIZE, "num_features": 1}
            config = config.model_copy(update={name: value for name, value in default.items() if getattr(config, name) is None})
        size = config.image_size if isinstance(config.image_size, list) else [config.image_size or 0] * 2
        media: Media = config.media or "image"
        return FrameOptions(
            media,
            (size[0], size[1]),
            config.channels,
            config.num_features or 0,
            1 if media == "image" else config.max_frames,
            config.frame_rate,
            config.resize,
        )

    def reader(self) -> CaptionReader:
        if not self.is_detected:
            self._detect()  # raises DataError if no file says what a frame is
        return CaptionReader(self.frames(), self.on_error == "skip")

    def rows(self) -> str:
        return NOUNS[self.media or "image"]
