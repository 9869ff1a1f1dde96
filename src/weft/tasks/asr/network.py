"""Builds models, data and objectives to train speech recognizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.manifest import MediaRecord
from weft.errors import DataError
from weft.metrics.speech import SPEECH_VALIDATION, validation_values
from weft.models.frame_to_text import FrameToText
from weft.models.speech import recognizer
from weft.tasks.media_objective import MediaExamples, MediaObjective, left_out_notes, make_examples
from weft.text.tokenizers import Tokenizer
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig

FIX = "; lower model.encoder.subsampling to use them"


def positions(config: RunConfig, frames: np.ndarray) -> np.ndarray:
    """The positions of the encoder for numbers of frames (N,)."""
    rounded_up: np.ndarray = -(-frames // config.model.encoder.subsampling)
    return rounded_up


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
        examples = make_examples(dataset, columns, partial(positions, config), has_ctc=config.model.has_ctc, learned=learned)
        if not learned and not any(text.split() for texts in examples.references for text in texts):
            raise DataError(dataset.name, "the texts have no words, so there is no error rate", "check the column of the texts")
        return examples

    def notes(self, config: RunConfig, train: MediaExamples) -> Sequence[str]:
        return left_out_notes(config, "train", train, fix=FIX)

    def valid_notes(self, config: RunConfig, valid: MediaExamples) -> Sequence[str]:
        return left_out_notes(config, "valid", valid, fix=FIX)

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
