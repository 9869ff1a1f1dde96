"""Captioners in comparisons: files and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.tasks.compare_spec import Compare, Predictions, Preview, Previews
from weft.tasks.media_data import references as texts_by_file

if TYPE_CHECKING:
    import numpy as np

    from weft.media.files import MediaFile
    from weft.metrics.items import ItemStatistics

PREVIEW_SIZE = (200, 400)  # height and width that an image of a report has at most
PREVIEW_FRAMES = 6


def item_predictions(
    files: Sequence[MediaFile], references: Sequence[Sequence[str]], lengths: np.ndarray, items: ItemStatistics
) -> Predictions:
    """Statistics of each file, with its name, first reference and length in frames."""
    names = [str(file) for file in files]
    return Predictions(items, names, [texts[0] for texts in references], lengths, "file", files=files)


def preview(file: MediaFile) -> Preview | None:
    """An image, or frames of a clip at equal distances, not larger than the file; None for features."""
    from weft.media.data_urls import picture_url
    from weft.media.video import frame_size, read_video
    from weft.tasks.captioning.reader import detect_media

    if (media := detect_media(file)) == "features":
        return None
    height, width = frame_size(file)
    scale = min(1.0, PREVIEW_SIZE[0] / height, PREVIEW_SIZE[1] / width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    frames = read_video(file, size=size, channels=3, max_frames=PREVIEW_FRAMES if media == "video" else 1)
    note = f"{len(frames)} frames of the clip" if media == "video" else ""
    return Preview("image", [picture_url(frame) for frame in frames], note)


LIMITS = f"at most {PREVIEW_SIZE[1]} x {PREVIEW_SIZE[0]} pixels and {PREVIEW_FRAMES} frames of each"
COMPARE = Compare(
    model_noun="captioner",
    length_unit="frames",
    previews=Previews(preview, "Images", LIMITS),
    input_files=texts_by_file,
)
