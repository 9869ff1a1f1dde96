"""Recognition with one run or an ensemble: greedy or beam search over CTC, attention or both, perhaps with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.metrics.speech import speech_items, speech_scores
from weft.tasks.asr.compare import item_predictions
from weft.tasks.asr.predict import SpeechEvaluation, SpeechOptions
from weft.tasks.media_predict import Frames, MediaPredictor
from weft.tasks.spec import Evaluation, Files, ProgressCallback, scores_by_name

if TYPE_CHECKING:
    from weft.nn.memory import Memory
    from weft.tasks.asr.alignment import SpeechAlignment


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
        if self.members[0].model.ctc_head is None:
            raise UsageError("return_alignments", "requires a CTC output", "train with model.ctc_weight above 0")

    @torch.inference_mode()
    def align(self, frames: Frames, prediction: Prediction) -> SpeechAlignment:
        """The times of the words of an output, and the features of the recording."""
        from weft.tasks.asr.alignment import align_words

        model: Any = self.members[0].model
        source, mask = self.batch([frames])
        features, _ = model.encoder.front.features(source, mask)
        memory: Memory = model.encoder(source, mask)
        config = self.members[0].config
        return align_words(
            model.frame_log_probs(memory)[0].cpu(),
            [token for token in prediction.token_ids if token != model.blank],
            self.tokenizer,
            blank=model.blank,
            seconds=config.model.encoder.subsampling / 100,
            features=features[0].cpu().numpy(),
        )

    # ---- evaluating

    def evaluate(self, data: Files | None, options: SpeechEvaluation, progress: ProgressCallback | None) -> Evaluation:
        """Error rates on recordings with transcripts."""
        with self.evaluation_frames(data) as inputs:
            predictions = self.outputs(inputs.frames, options, progress=progress)
        statistics = speech_items([prediction.text for prediction in predictions], inputs.references)
        scores = speech_scores(statistics, search=self.signature(options))
        details = partial(item_predictions, inputs.files, inputs.references, inputs.lengths, statistics)
        return Evaluation(scores_by_name(scores), statistics, details, "recordings/s", len(predictions), notes=inputs.notes)
