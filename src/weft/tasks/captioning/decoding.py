"""Captioning with one run or an ensemble, and the attention of each word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch

from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.explain import frame_alignment
from weft.explain.frame_alignment import FrameAlignment
from weft.metrics.captioning import caption_items, caption_scores, caption_setup
from weft.models.caption import positions_per_frame
from weft.tasks.captioning.compare import item_predictions
from weft.tasks.captioning.predict import CaptionEvaluation, CaptionOptions
from weft.tasks.captioning.reader import CaptionFrames
from weft.tasks.media_predict import Frames, MediaInput, MediaPredictor
from weft.tasks.spec import Evaluation, Files, ProgressCallback, scores_by_name


class CaptionPredictor(MediaPredictor):
    """One captioner, or several with the same tokenizer."""

    def positions(self, frames: int) -> int:
        """The positions of the encoder for a number of frames; of an ensemble, the fewest."""
        configs = [member.config for member in self.members]
        return min(frames * positions_per_frame(config.model.encoder, config.data.frames().shape) for config in configs)

    def max_new_tokens(self, frames: int) -> int:
        """The limit of an output, if none is set: that of the training texts; CTC emits at most one token per position."""
        limit: int = min(member.config.data.max_length for member in self.members) - 1
        has_decoder = all(member.model.decoder is not None for member in self.members)
        return limit if has_decoder else min(limit, self.positions(frames))

    def search(
        self,
        frames: Sequence[Frames],
        options: PredictionConfig,
        *,
        prefix: str = "",
        numbers: Sequence[int] | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[Prediction]]:
        """See `MediaPredictor.search`. The length of a text does not follow from the number of frames."""
        if options.max_new_tokens is None:
            longest = self.max_new_tokens(max((len(row[0]) for row in frames), default=1))
            limit = max(1, longest - len(self.tokenizer.encode(prefix)), options.min_new_tokens + 1)
            options = options.model_copy(update={"max_new_tokens": limit})
        return super().search(frames, options, prefix=prefix, numbers=numbers, progress=progress)

    def caption(
        self,
        values: Sequence[MediaInput],
        frames: Sequence[Frames],
        options: CaptionOptions,
        progress: ProgressCallback | None,
    ) -> list[Prediction]:
        """The best output for each input, with its alternatives. `frames` are those of the inputs."""
        predictions = self.outputs(frames, options, prefix=options.target_prefix, numbers=options.numbers, progress=progress)
        if not options.return_alignments:
            return predictions
        return [
            prediction._replace(alignment=self.align(value, row, prediction, options))
            for value, row, prediction in zip(values, frames, predictions, strict=True)
        ]

    # ---- alignments

    def check_alignable(self, options: CaptionOptions) -> None:
        if len(self.members) > 1 or self.lm is not None:
            raise UsageError("return_alignments", "not available for several models", "align with one run")
        frame_alignment.check_alignable(self.members[0].model, options.layer, options.head)

    @torch.inference_mode()
    def align(self, value: MediaInput, frames: Frames, prediction: Prediction, options: CaptionOptions) -> FrameAlignment:
        """The attention of each word of an output."""
        member, tokenizer = self.members[0], self.tokenizer
        tokens = [token for token in [*prediction.prefix, *prediction.token_ids] if token != tokenizer.eos_id]
        weights = frame_alignment.token_weights(
            member.model, self.batch([frames]), tokens, layer=options.layer, head=options.head
        )
        words = prediction.text.split()
        weights = frame_alignment.by_word(weights, frame_alignment.word_numbers(tokenizer, tokens), len(words))
        pictures = self.frame_readers[0].pictures(value, frames[0])
        height, width = self.grid
        weights = weights.reshape(len(words), weights.shape[1] // (height * width), height, width)
        return FrameAlignment(words, weights, pictures, is_attention=member.model.decoder is not None)

    @property
    def frame_readers(self) -> list[CaptionFrames]:
        return cast("list[CaptionFrames]", self.readers)  # those of the task's [data] table

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the positions of a picture, for the first model."""
        options = self.frame_readers[0].options
        if options.encoder is not None and options.media == "image":
            return options.encoder.grid
        grid: tuple[int, int] = self.members[0].model.encoder.front.front.grid
        return grid

    # ---- evaluating

    def evaluate(self, data: Files | None, options: CaptionEvaluation, progress: ProgressCallback | None) -> Evaluation:
        """Scores on files with texts, against all references of each."""
        with self.evaluation_frames(data) as inputs:
            predictions = self.outputs(inputs.frames, options, progress=progress)
        statistics = caption_items([prediction.text for prediction in predictions], inputs.references)
        scores = caption_scores(statistics, caption_setup(inputs.references, search=self.signature(options)))
        details = partial(item_predictions, inputs.files, inputs.references, inputs.lengths, statistics)
        return Evaluation(scores_by_name(scores), statistics, details, "files/s", len(predictions), notes=inputs.notes)
