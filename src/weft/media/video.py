"""Video as arrays of pixels: clips, animations, and directories with one image per frame.

A clip whose end is missing, or that cannot be decoded to its end, is an error: its frames would no longer match its text.

Shapes: T frames, H height, W width, C channels (1 grayscale, 3 RGB).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from weft.errors import DataError
from weft.media.containers import is_truncated, video_format
from weft.media.files import MediaFile, import_extra
from weft.media.images import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    ORIENTATION,
    SIDEWAYS,
    Resize,
    check_pixels,
    color_mode,
    image_array,
    is_array_file,
    one_line,
    opened_image,
    pillow_image,
    pixels,
    read_clip_array,
    read_image,
)

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream
    from PIL import Image as PillowImage

Array = np.ndarray
MAX_FRAMES = 1_000_000  # of a clip, before frames are selected: 11 hours at 25 frames per second
DEFAULT_RATE = 25.0  # frames per second, if a file has neither times nor a rate
FRAME_SECONDS = 0.1  # of an animation that does not say it, as browsers show it
TOLERANCE = 1e-6  # seconds; times are rounded to the clock of a file

Decoded = tuple[float, Callable[[], "PillowImage.Image"]]  # time of a frame in seconds, and its image


class FrameSelection(NamedTuple):
    """Which frames of a clip are used."""

    max_frames: int
    frame_rate: float | None = None  # frames per second; None: all frames of the clip

    def select(self, file: MediaFile, times: Sequence[float]) -> Array:
        """Indices of the selected frames. Frames occur several times if the clip has a lower rate."""
        selected = np.arange(len(times))
        if self.frame_rate is not None:
            selected = self._at_rate(file, np.maximum.accumulate(times), self.frame_rate)
        if len(selected) > self.max_frames:  # the centers of `max_frames` equal parts
            centers = (np.arange(self.max_frames) + 0.5) * len(selected) / self.max_frames
            selected = selected[centers.astype(np.int64)]
        return selected

    def _at_rate(self, file: MediaFile, times: Array, rate: float) -> Array:
        """The frame that is shown at each tick of the rate."""
        # the last frame is shown as long as the others
        length = (times[-1] - times[0]) * len(times) / max(1, len(times) - 1) if len(times) > 1 else 0.0
        if not length * rate <= MAX_FRAMES:
            raise DataError(str(file), f"{length:,.0f} seconds at {rate:g} frames per second exceed {MAX_FRAMES:,} frames")
        ticks = times[0] + np.arange(max(1, round(length * rate))) / rate
        shown: Array = np.searchsorted(times, ticks + TOLERANCE, side="right") - 1
        return shown


def read_video(
    file: MediaFile,
    *,
    size: tuple[int, int],
    channels: int,
    max_frames: int,
    frame_rate: float | None = None,
    resize: Resize = "stretch",
) -> Array:
    """Frames (T, H, W, C) of a clip, uint8, with `size` = (H, W): all of them, or `frame_rate` per second.

    If there are more than `max_frames`, this many are selected at equal distances. A clip is a video (MP4, MOV, MKV, WebM, AVI,
    MPEG), an animation (GIF, WebP, APNG), an array (.npy) or a directory of images in the order of the numbers in their names.
    Arrays and directories have no times: `frame_rate` does not apply to them. `start` and `duration` of the file apply to
    videos only. `resize` is explained at `read_image`. MPEG files do not say how long they are: that their end is missing is
    not noticed.
    """
    selection = FrameSelection(max_frames, frame_rate)
    if not file.member and file.path.is_dir():
        images = frame_files(file.path)
        selected = selection._replace(frame_rate=None).select(file, range(len(images)))
        return np.stack(
            [read_image(MediaFile(images[i]), size=size, channels=channels, resize=resize) for i in selected.tolist()]
        )
    if is_array_file(file):
        array = read_clip_array(file)
        selected = selection._replace(frame_rate=None).select(file, range(len(array)))
        return np.stack([image_array(array[i], size=size, channels=channels, resize=resize) for i in selected.tolist()])
    mode = color_mode(channels)
    clip = _Clip(file) if video_format(file.read(16)) else _Animation(file)
    selected = selection.select(file, clip.expected_times())
    frames, times = _decode(clip, selected, lambda image: pixels(image, size=size, mode=mode, resize=resize))
    actual = selection.select(file, times)
    if not np.array_equal(actual, selected):  # the headers announced other frames
        frames, _ = _decode(clip, actual, lambda image: pixels(image, size=size, mode=mode, resize=resize))
    return np.stack([frames[index] for index in actual.tolist()])


def frame_size(file: MediaFile) -> tuple[int, int]:
    """Height and width of the first frame of a clip, or of an image, as it is shown."""
    if not file.member and file.path.is_dir():
        return frame_size(MediaFile(frame_files(file.path)[0]))
    if is_array_file(file):
        _, height, width, _ = read_clip_array(file).shape
        return height, width
    if not video_format(file.read(16)):
        with opened_image(file) as image:
            is_on_its_side = image.getexif().get(ORIENTATION, 1) in SIDEWAYS
            return (image.width, image.height) if is_on_its_side else (image.height, image.width)
    frames = _Clip(file).frames()
    try:
        first = next(frames, None)
        size = None if first is None else first[1]().size
    except DataError:
        raise
    except Exception as error:  # decoders raise anything on damaged files
        raise DataError(str(file), f"cannot be decoded: {one_line(error)}") from None
    if size is None:
        raise DataError(str(file), "no frames")
    return size[1], size[0]


def frame_files(directory: Path) -> list[Path]:
    """Images of a directory in natural order: 2.png before 10.png."""
    try:
        paths = [path for path in directory.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and path.name[0] != "."]
    except OSError as error:
        raise DataError(directory, f"cannot be read: {error.strerror}") from None
    if not paths:
        raise DataError(directory, "no images in this directory")
    if len(paths) > MAX_FRAMES:
        raise DataError(directory, f"{len(paths):,} images are more than the limit of {MAX_FRAMES:,}")
    return sorted(paths, key=lambda path: (_natural(path.name), path.name))


def _natural(name: str) -> list[tuple[str, int]]:
    """A sort key in which runs of digits are numbers: pairs of text and the number after it."""
    parts = re.split(r"([0-9]+)", name)
    return [(text.lower(), int(digits[:1000])) for text, digits in zip(parts[::2], [*parts[1::2], "0"], strict=True)]


def _decode(
    clip: _Clip | _Animation, selected: Array, convert: Callable[[PillowImage.Image], Array]
) -> tuple[dict[int, Array], list[float]]:
    """Pixels of the selected frames by index, and the times of all frames. Refuses damaged clips."""
    wanted, frames, times = set(selected.tolist()), dict[int, Array](), list[float]()
    problem = ""
    try:
        for time, image in clip.frames():
            if len(times) in wanted:
                frames[len(times)] = convert(image())
            times.append(time)
            if len(times) > MAX_FRAMES:
                raise DataError(str(clip.file), f"more than {MAX_FRAMES:,} frames", "split it into clips")
    except DataError:
        raise
    except Exception as error:  # decoders raise anything on damaged files
        problem = one_line(error)
    if clip.is_truncated:
        number = f"only {len(times):,}" if times else "no"
        raise DataError(str(clip.file), f"the end of the file is missing: {number} frames can be decoded")
    if problem:
        raise DataError(str(clip.file), f"cannot be decoded after {len(times):,} frames: {problem}")
    if not times:
        raise DataError(str(clip.file), "no frames")
    return frames, times


class _Animation:
    """A GIF, WebP or PNG file, or any other image as a single frame; decoded by Pillow."""

    def __init__(self, file: MediaFile) -> None:
        self.file = file
        self.is_truncated = is_truncated(file.read())
        with opened_image(file) as image:
            is_animation = image.format in ("GIF", "WEBP", "PNG", "AVIF")
            self.num_frames: int = cast(Any, image).n_frames if is_animation else 1
        if self.num_frames > MAX_FRAMES:
            raise DataError(str(file), f"{self.num_frames:,} frames are more than the limit of {MAX_FRAMES:,}")

    def expected_times(self) -> Sequence[float]:
        return [index * FRAME_SECONDS for index in range(max(1, self.num_frames))]

    def frames(self) -> Iterator[Decoded]:
        time = 0.0
        with pillow_image(self.file) as image:  # errors are counted with the frames
            for index in range(self.num_frames):
                image.seek(index)
                image.load()
                yield time, lambda: image
                time += float(image.info.get("duration") or 1000 * FRAME_SECONDS) / 1000


class _Clip:
    """A video file, decoded by FFmpeg in one thread."""

    def __init__(self, file: MediaFile) -> None:
        self.file = file
        self.content = file.read()
        self.is_truncated = is_truncated(self.content)
        self.format = video_format(self.content)

    def _open(self) -> InputContainer:
        av = import_extra("av", "av", "video")
        try:
            container: InputContainer = av.open(BytesIO(self.content), format=self.format, **_open_options(av))
        except Exception as error:  # FFmpeg's errors, and ValueError for odd headers
            raise self._not_a_video(one_line(error)) from None
        try:
            self._prepare(container)
        except Exception:
            container.close()
            raise
        return container

    def _prepare(self, container: InputContainer) -> None:
        """Set the options of the decoder. Refuses what it cannot decode."""
        context = container.streams.video[0].codec_context if container.streams.video else None
        if context is None:
            raise self._not_a_video("no decoder" if container.streams.video else "no video stream")
        context.thread_type, context.thread_count = "NONE", 1  # with threads, damaged files give different frames
        context.options = {"max_pixels": str(MAX_PIXELS)}
        if context.width or context.height:  # otherwise only the frames say it
            check_pixels(str(self.file), context.width, context.height)

    def _not_a_video(self, problem: str) -> DataError:
        if self.is_truncated:
            return DataError(str(self.file), "the end of the file is missing: no frames can be decoded")
        return DataError(str(self.file), f"not a video: {problem}")

    @property
    def _end(self) -> float:
        """The end of the part of the file that is used, in seconds."""
        return math.inf if self.file.duration is None else self.file.start + self.file.duration

    def expected_times(self) -> Sequence[float]:
        """Times of the packets, which are those of the frames in most files."""
        with self._open() as container:
            stream = container.streams.video[0]
            first, times = _start_time(stream), list[float]()
            try:
                times.extend(
                    float(((packet.dts or 0) if packet.pts is None else packet.pts) * packet.time_base) - first
                    for packet in islice(container.demux(stream), MAX_FRAMES + 2)  # the last packet is empty
                    if packet.size
                )
            except Exception:  # the frames before it are decoded and counted, then it is an error
                return times or [0.0]
        if len(times) > MAX_FRAMES:
            raise DataError(str(self.file), f"more than {MAX_FRAMES:,} frames", "split it into clips")
        return sorted(time for time in times if self.file.start - TOLERANCE <= time < self._end - TOLERANCE) or [0.0]

    def frames(self) -> Iterator[Decoded]:
        with self._open() as container:
            stream, start = container.streams.video[0], self.file.start
            first, rate = _start_time(stream), float(stream.average_rate or DEFAULT_RATE)
            if start > 1.0 and self.format in ("mov", "matroska"):  # to a key frame before the start
                container.seek(int((first + start - 1.0) * 1_000_000))
            converter = import_extra("av.video.reformatter", "av", "video").VideoReformatter()
            for index, frame in enumerate(container.decode(stream)):
                time = index / rate if frame.time is None else frame.time - first
                if time >= self._end - TOLERANCE:
                    return
                if time >= start - TOLERANCE:
                    yield time, _image(self.file, frame, converter)


def _open_options(av: ModuleType) -> dict[str, Any]:
    """Titles in any encoding are accepted: PyAV before 19 has an option for it, later versions always do."""
    return {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}


def _start_time(stream: VideoStream) -> float:
    """When the first frame is shown, in seconds."""
    return float((stream.start_time or 0) * (stream.time_base or 0))


def _image(file: MediaFile, frame: VideoFrame, converter: VideoReformatter) -> Callable[[], PillowImage.Image]:
    """A function that converts a frame to an upright image."""
    if frame.is_corrupt:
        raise ValueError("damaged frame")
    check_pixels(str(file), frame.width, frame.height)

    def convert() -> PillowImage.Image:
        image = import_extra("PIL.Image", "Pillow", "video").fromarray(converter.reformat(frame, format="rgb24").to_ndarray())
        upright: PillowImage.Image = image.rotate(frame.rotation, expand=True)  # counterclockwise, as FFmpeg counts
        return upright

    return convert
