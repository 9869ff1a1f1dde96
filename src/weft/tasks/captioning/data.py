"""The [data] section of captioning.

What the files are, and their size, is detected from the first one if the run file does not say it. A run has one kind of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.config import training
from weft.data.dataset import Dataset
from weft.data.manifest import MediaRecord, record_location
from weft.errors import ConfigError, DataError, WeftError
from weft.media.files import MediaFile
from weft.media.images import read_array
from weft.media.video import frame_size
from weft.tasks.captioning.reader import (
    CaptionFrames,
    CaptionReader,
    EncodedReader,
    EncoderOptions,
    FrameOptions,
    Media,
    detect_media,
    file_in_memory,
)
from weft.tasks.media_data import MediaDataConfig
from weft.text.reading import FileSummary

NOUNS: dict[str, str] = {"image": "images", "video": "clips", "features": "feature arrays"}
MAX_SIZE = 128  # pixels per side, unless the run file says more
MAX_ATTEMPTS = 10  # files that are tried to find out what they are


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
    """Features per position. Default: those of the first file, or of feature_encoder."""
    feature_encoder: str | None = None
    """Directory of a pre-trained vision encoder (Hugging Face or timm): its features are computed once, instead of pixels."""
    feature_encoder_hash: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the files of feature_encoder, which must not change. Default: that of the files."""
    feature_grid: list[int] | None = Field(None, min_length=2, max_length=2)
    """Height and width of the grid of features of feature_encoder. Default: as it computes it."""
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

    @model_validator(mode="after")
    def check_encoder(self) -> Self:
        given = self.model_fields_set
        if self.feature_encoder is None:
            unused = next((name for name in ("feature_encoder_hash", "feature_grid") if getattr(self, name) is not None), None)
            if unused is not None:
                raise invalid(unused, "requires feature_encoder", "remove it")
            return self
        if self.media == "features":
            raise invalid("feature_encoder", "not used with media 'features'", "list images or clips")
        fixed = {"image_size": None, "channels": 3, "resize": "stretch"}
        changed = next((name for name, value in fixed.items() if name in given and getattr(self, name) != value), None)
        if changed is not None:
            raise invalid(changed, "not used with feature_encoder, which has its own preprocessing", "remove it")
        return self

    def _unused_option(self) -> str | None:
        """An option that is set, but that files of this kind do not have."""
        kinds = {"image_size": ("image", "video"), "frame_rate": ("video",)}
        if self.feature_encoder is None:
            kinds["num_features"] = ("features",)
        options = (name for name, media in kinds.items() if self.media not in (None, *media))
        return next((name for name in options if getattr(self, name) is not None), None)

    def file_of(self, value: object, where: str) -> str | bytes:
        """The path of a file, or the content of a file with an image, a clip or features."""
        if isinstance(value, str | Path):
            return super().file_of(value, where)
        if self.root is not None:
            raise DataError(where, "expected a path, because data.root is set", "remove data.root")
        return file_in_memory(value, self.media, where)

    @property
    def is_detected(self) -> bool:
        """Whether it is known what a frame is."""
        if self.feature_encoder is not None:
            return None not in (self.media, self.num_features, self.feature_grid, self.feature_encoder_hash)
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
        if self.feature_encoder is not None:
            if media == "features":
                raise DataError(str(file), "holds features, but data.feature_encoder reads images and clips", "remove it")
            return {"media": media, **self._describe_encoder()}
        if media == "features":
            return {"media": media, "num_features": self.num_features or read_array(file).shape[1]}
        if self.image_size is not None:
            return {"media": media}
        return {"media": media, "image_size": [min(side, MAX_SIZE) for side in frame_size(file)]}

    def _describe_encoder(self) -> dict[str, Any]:
        from weft.tasks.captioning.vision_encoder import open_encoder  # imports torch

        encoder, content = open_encoder(str(self.feature_encoder), self.feature_encoder_hash)
        shape = encoder.shape()
        return {
            "feature_encoder_hash": content,
            "feature_grid": self.feature_grid or list(shape.grid),
            "num_features": shape.num_features,
        }

    def frames(self) -> FrameOptions:
        """What a frame is; an image of 128 x 128 pixels if the files cannot be read."""
        config = self.with_detected()
        if not config.is_detected:
            default = {"media": "image", "image_size": MAX_SIZE, "num_features": 1, "feature_grid": [1, 1]}
            config = config.model_copy(update={name: value for name, value in default.items() if getattr(config, name) is None})
        size = config.image_size if isinstance(config.image_size, list) else [config.image_size or 0] * 2
        media: Media = config.media or "image"
        encoder = None
        if config.feature_encoder is not None:
            grid = config.feature_grid or [1, 1]
            encoder = EncoderOptions(config.feature_encoder, config.feature_encoder_hash or "", (grid[0], grid[1]))
        return FrameOptions(
            media,
            (size[0], size[1]),
            config.channels,
            config.num_features or 0,
            1 if media == "image" else config.max_frames,
            config.frame_rate,
            config.resize,
            encoder,
        )

    def reader(self) -> CaptionFrames:
        if not self.is_detected:
            self._detect()  # raises DataError if no file says what a frame is
        options, skips_errors = self.frames(), self.on_error == "skip"
        if options.encoder is None:
            return CaptionReader(options, skips_errors)
        from weft.tasks.captioning.vision_encoder import open_encoder  # imports torch

        encoder, _ = open_encoder(options.encoder.directory, options.encoder.content)
        return EncodedReader(options, encoder, skips_errors)

    def rows(self) -> str:
        return NOUNS[self.media or "image"]
