"""Speech recognizers in comparisons: recordings and their transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.tasks.compare_spec import Compare, Predictions, Preview, Previews
from weft.tasks.media_data import references as texts_by_file

if TYPE_CHECKING:
    import numpy as np

    from weft.media.files import MediaFile
    from weft.metrics.items import ItemStatistics

PREVIEW_SECONDS = 20


def item_predictions(
    files: Sequence[MediaFile], references: Sequence[Sequence[str]], lengths: np.ndarray, items: ItemStatistics
) -> Predictions:
    """Statistics of each recording, with its file, transcript and length in frames."""
    names = [str(file) for file in files]
    return Predictions(items, names, [texts[0] for texts in references], lengths, "recording", files=files)


def preview(file: MediaFile) -> Preview:
    """The first seconds of a recording."""
    from weft.media.audio import read_audio
    from weft.media.data_urls import sound_url

    audio = read_audio(file)
    seconds = len(audio.samples) / audio.rate
    note = f"first {PREVIEW_SECONDS} s of {seconds:.1f} s" if seconds > PREVIEW_SECONDS else ""
    return Preview("audio", [sound_url(audio._replace(samples=audio.samples[: PREVIEW_SECONDS * audio.rate]))], note)


COMPARE = Compare(
    model_noun="speech recognizer",
    length_unit="frames of 10 ms",
    previews=Previews(preview, "Recordings", f"8 bits per sample, at most 16 kHz and the first {PREVIEW_SECONDS} s of each"),
    input_files=texts_by_file,
)
