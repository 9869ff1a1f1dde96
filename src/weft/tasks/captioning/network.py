"""Builds models, data and objectives to train captioners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.frames import Frames
from weft.data.manifest import MediaRecord
from weft.decode.predict_options import PredictionConfig
from weft.errors import DataError
from weft.metrics.captioning import CAPTIONING_VALIDATION, validation_values
from weft.models.caption import captioner, positions_per_frame
from weft.models.frame_to_text import FrameToText
from weft.nn.ctc import frames_needed
from weft.tasks.captioning.data import NOUNS
from weft.tasks.media_data import references, target_texts
from weft.tasks.media_objective import MediaExamples, MediaObjective
from weft.text.reading import subject
from weft.text.tokenizers import Tokenizer
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig


def positions(config: RunConfig, frames: np.ndarray) -> np.ndarray:
    """The positions of the encoder for numbers of frames (N,)."""
    per_frame = positions_per_frame(config.model.encoder, config.data.frames().shape)
    total: np.ndarray = frames * per_frame
    return total


def positions_needed(target: Corpus) -> np.ndarray:
    """int64 (N,): the least positions that CTC needs for each text."""
    starts = target.line_starts()
    return np.array([frames_needed(target.tokens[low : high - 1]) for low, high in pairwise(starts)])


class CaptionBuilder(NetworkTask[MediaExamples]):
    """Builds captioners, their examples and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], FrameToText]:
        options = config.data.frames()
        max_positions = max(config.data.max_length, int(positions(config, np.array(options.max_frames))))
        return lambda: captioner(config.model, vocabulary, options.shape, max_positions=max_positions)

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
            raise DataError(dataset.name, "no file is long enough for its text", "check the texts")
        if not any(text.strip() for text in target_texts(dataset)):
            raise DataError(dataset.name, "all texts are empty", "check the column of the texts")
        if learned:
            return MediaExamples(source, target, np.flatnonzero(usable))
        texts = list(references(dataset).values())
        _, first = np.unique(source.index, return_index=True)  # files with several references are evaluated once
        records = first[usable[first]]
        return MediaExamples(source, target, records, [texts[source.index[record]] for record in records])

    def notes(self, config: RunConfig, train: MediaExamples) -> Sequence[str]:
        """What the files were taken for, and those that are left out, because their texts are too long for CTC."""
        options = config.data.frames()
        shape = options.shape.pixels
        form = f"{options.num_features:,} features" if shape is None else "{} x {} pixels, {} channels".format(*shape)
        notes = [f"files are read as {NOUNS[options.media]}: {form} per frame"]
        left_out = np.setdiff1d(np.flatnonzero(train.source.lengths() > 0), train.records)
        if len(left_out):
            shown = ", ".join(str(record + 1) for record in left_out[:3]) + (", ..." if len(left_out) > 3 else "")
            notes.append(
                f"{subject(len(left_out), 'file', 'has', 'have')} too few positions for CTC (record {shown}) and skipped"
            )
        return notes

    def objective(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        train: MediaExamples | None,
        valid: MediaExamples | None,
        device: torch.device,
    ) -> MediaObjective:
        return MediaObjective(
            valid=valid,
            tokenizer=vocabulary,
            device=device,
            smoothing=0.0 if train is None else config.train.label_smoothing,
            score=validation_values,
            monitors=CAPTIONING_VALIDATION,
            search=PredictionConfig(beam_size=1, max_new_tokens=config.data.max_length - 1),
        )
