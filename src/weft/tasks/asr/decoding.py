"""Recognition with one run or an ensemble: greedy or beam search over CTC, attention or both, perhaps with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.explain.alignment import cross_attention_modules
from weft.explain.speech_alignment import Recording, SpeechAlignment, WordTime
from weft.metrics.speech import speech_items, speech_scores
from weft.tasks.asr.alignment import align_words, band_frequencies
from weft.tasks.asr.compare import item_predictions
from weft.tasks.asr.data import FRAMES_PER_SECOND
from weft.tasks.asr.predict import SpeechEvaluation, SpeechOptions
from weft.tasks.media_predict import Frames, MediaPredictor
from weft.tasks.spec import Evaluation, Files, ProgressCallback, scores_by_name


class SpeechPredictor(MediaPredictor):
    """One recognizer, or several with the same tokenizer."""

    def positions(self, frames: int) -> int:
        """The positions of the encoder for a number of frames; of an ensemble, the fewest."""
        return min(-(-frames // int(member.config.model.encoder.subsampling)) for member in self.members)

    # ---- recognizing

    def recognize(
        self, frames: Sequence[Frames], options: SpeechOptions, progress: ProgressCallback | None
    ) -> list[Prediction]:
        """The best output for each recording, with its alternatives."""
        predictions = self.outputs(frames, options, prefix=options.target_prefix, numbers=options.numbers, progress=progress)
        if not options.return_alignments:
            return predictions
        return [
            prediction._replace(alignment=self.align(row, prediction))
            for row, prediction in zip(frames, predictions, strict=True)
        ]

    # ---- alignments

    def check_alignable(self) -> None:
        """Refuse word times of models that have none."""
        if len(self.members) > 1 or self.lm is not None:
            raise UsageError("return_alignments", "not available for several models", "align with one run")
        model = self.members[0].model
        if model.ctc_head is None and not cross_attention_modules(model):
            fix = "train with model.ctc_weight above 0 or with attention"
            raise UsageError("return_alignments", "requires a CTC output or attention", fix)

    @torch.inference_mode()
    def align(self, frames: Frames, prediction: Prediction) -> SpeechAlignment:
        """The times of the words of an output, and the features of the recording."""
        model: Any = self.members[0].model
        source, mask = self.batch([frames])
        return align_words(
            model,
            model.encoder(source, mask),
            [*prediction.prefix, *prediction.token_ids],
            self.tokenizer,
            seconds=self.members[0].config.model.encoder.subsampling / FRAMES_PER_SECOND,
            recording=self.recording(frames),
        )

    def token_times(self, frames: Frames, token_ids: list[int]) -> list[WordTime]:
        """When each token of an output was said; [] without CTC, or if the output has no path."""
        times: list[WordTime] = self.align(frames, Prediction("", token_ids, 0.0, 0.0)).tokens
        return times

    @torch.no_grad()
    def recording(self, frames: Frames) -> Recording:
        """The features of a recording, as the first model reads them."""
        front: Any = self.members[0].model.encoder.front
        features, _ = front.features(*self.batch([frames]))
        return Recording(features[0].cpu().numpy(), 1 / FRAMES_PER_SECOND, band_frequencies(front.log_mel))

    # ---- evaluating

    def evaluate(self, data: Files | None, options: SpeechEvaluation, progress: ProgressCallback | None) -> Evaluation:
        """Error rates on recordings with transcripts."""
        with self.evaluation_frames(data) as inputs:
            predictions = self.outputs(inputs.frames, options, progress=progress)
        statistics = speech_items([prediction.text for prediction in predictions], inputs.references)
        scores = speech_scores(statistics, search=self.signature(options))
        details = partial(item_predictions, inputs.files, inputs.references, inputs.lengths, statistics)
        return Evaluation(scores_by_name(scores), statistics, details, "recordings/s", len(predictions), notes=inputs.notes)
