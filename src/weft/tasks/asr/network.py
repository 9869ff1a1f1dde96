"""Builds models, data and objectives to train speech recognizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.frames import Frames
from weft.data.manifest import MediaRecord
from weft.errors import DataError
from weft.metrics.speech import SPEECH_VALIDATION, validation_values
from weft.models.frame_to_text import FrameToText
from weft.models.speech import recognizer
from weft.nn.ctc import frames_needed
from weft.tasks.media_data import references
from weft.tasks.media_objective import MediaExamples, MediaObjective
from weft.text.reading import subject
from weft.text.tokenizers import Tokenizer
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig


def positions(config: RunConfig, frames: np.ndarray) -> np.ndarray:
    """The positions of the encoder for numbers of frames (N,)."""
    rounded_up: np.ndarray = -(-frames // config.model.encoder.subsampling)
    return rounded_up


def positions_needed(target: Corpus) -> np.ndarray:
    """int64 (N,): the least positions that CTC needs for each text."""
    starts = target.line_starts()
    return np.array([frames_needed(target.tokens[low : high - 1]) for low, high in pairwise(starts)])


class SpeechBuilder(NetworkTask[MediaExamples]):
    """Builds recognizers, their examples and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], FrameToText]:
        data = config.data
        max_frames = int(data.max_seconds * data.sample_rate / data.reader().width)
        return lambda: recognizer(
            config.model,
            vocabulary,
            max_positions=max(data.max_length, int(positions(config, np.array(max_frames)))),
            rate=data.sample_rate,
            hop=data.reader().width,
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[MediaRecord],
        columns: Sequence[Any],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> MediaExamples:
        source: Frames
        target: Corpus
        source, target = columns
        lengths = source.lengths()
        needed = positions_needed(target) if config.model.has_ctc else np.zeros(len(lengths))
        usable = (lengths > 0) & (positions(config, lengths) >= needed)
        if not usable.any():
            raise DataError(dataset.name, "no recording is long enough for its text", "check the texts")
        if learned:
            return MediaExamples(source, target, np.flatnonzero(usable))
        texts = list(references(dataset).values())
        _, first = np.unique(source.index, return_index=True)  # files with several references are evaluated once
        records = first[usable[first]]
        if not any(text.split() for record in records for text in texts[source.index[record]]):
            raise DataError(dataset.name, "the texts have no words, so there is no error rate", "check the column of the texts")
        return MediaExamples(source, target, records, [texts[source.index[record]] for record in records])

    def notes(self, config: RunConfig, train: MediaExamples) -> Sequence[str]:
        """The recordings that are left out, because their texts are too long for CTC."""
        is_read = train.source.lengths() > 0
        left_out = np.setdiff1d(np.flatnonzero(is_read), train.records)
        if not len(left_out):
            return []
        numbers = ", ".join(str(record + 1) for record in left_out[:3])
        shown = f"{numbers}, ..." if len(left_out) > 3 else numbers
        count = subject(len(left_out), "recording", "is", "are")
        return [f"{count} too short for the text and skipped (record {shown}); lower model.encoder.subsampling to use them"]

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: MediaExamples | None,
        valid: MediaExamples | None,
        device: torch.device,
    ) -> MediaObjective:
        smoothing = 0.0 if train is None else config.train.label_smoothing
        return MediaObjective(
            valid=valid,
            tokenizer=vocabulary,
            device=device,
            smoothing=smoothing,
            score=validation_values,
            monitors=SPEECH_VALIDATION,
        )
