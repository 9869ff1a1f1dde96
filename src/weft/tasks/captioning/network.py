"""Builds models, data and objectives to train captioners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.manifest import MediaRecord
from weft.decode.predict_options import PredictionConfig
from weft.metrics.captioning import CAPTIONING_VALIDATION, validation_values
from weft.models.caption import captioner, positions_per_frame
from weft.models.frame_to_text import FrameToText
from weft.tasks.captioning.data import NOUNS
from weft.tasks.media_objective import MediaExamples, MediaObjective, left_out_notes, make_examples
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


class CaptionBuilder(NetworkTask[MediaExamples]):
    """Builds captioners, their examples and objectives."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], FrameToText]:
        options = config.data.frames()
        max_positions = max(config.data.max_length, int(positions(config, np.array(options.max_positions))))
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
        return make_examples(dataset, columns, partial(positions, config), has_ctc=config.model.has_ctc, learned=learned)

    def notes(self, config: RunConfig, train: MediaExamples) -> Sequence[str]:
        """What the files were taken for, and those that are left out, because their texts are too long for CTC."""
        options = config.data.frames()
        shape = options.shape.pixels
        form = f"{options.num_features:,} features" if shape is None else "{} x {} pixels, {} channels".format(*shape)
        if options.encoder is not None:
            form = "{} x {} cells of {} of {}".format(*options.encoder.grid, form, options.encoder.directory)
        return [f"files are read as {NOUNS[options.media]}: {form} per frame", *left_out_notes(config, "train", train)]

    def valid_notes(self, config: RunConfig, valid: MediaExamples) -> Sequence[str]:
        return left_out_notes(config, "valid", valid)

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
