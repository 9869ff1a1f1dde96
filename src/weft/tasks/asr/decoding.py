"""Recognition with one run or an ensemble: greedy or beam search over CTC, attention or both, perhaps with a language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.dataset import Dataset
from weft.data.frames import write_frames
from weft.data.manifest import MediaRecord
from weft.decode.prediction import Prediction
from weft.errors import DataError, UsageError
from weft.metrics.speech import speech_items, speech_scores
from weft.nn import ctc
from weft.runs.eval_data import eval_source
from weft.tasks.asr.compare import item_predictions
from weft.tasks.asr.predict import SpeechEvaluation, SpeechOptions, SpeechScore
from weft.tasks.media_data import references
from weft.tasks.media_predict import MediaInput, MediaPredictor
from weft.tasks.spec import Evaluation, Files, InvalidInput, ProgressCallback, scores_by_name
from weft.text.reading import check_text, subject

if TYPE_CHECKING:
    from weft.nn.memory import Memory
    from weft.tasks.asr.alignment import SpeechAlignment

BATCH_SOURCES = 32
Frames = tuple[np.ndarray, ...]  # of one recording, for each member


class SpeechPredictor(MediaPredictor):
    """One recognizer, or several with the same tokenizer."""

    def positions(self, frames: int) -> int:
        """The positions of the encoder for a number of frames; of an ensemble, the fewest."""
        return min(-(-frames // int(member.config.model.encoder.subsampling)) for member in self.members)

    def read_or_raise(self, value: MediaInput) -> Frames:
        """The frames of one recording."""
        (frames,) = self.read([value])
        if isinstance(frames, InvalidInput):
            raise DataError("input", frames.reason)
        return frames

    @property
    def is_ctc_alone(self) -> bool:
        """Whether outputs depend on nothing but the CTC output of one model."""
        return len(self.members) == 1 and self.lm is None and self.members[0].model.decoder is None

    # ---- recognizing

    def recognize(
        self, frames: Sequence[Frames], options: SpeechOptions | SpeechEvaluation, progress: ProgressCallback | None
    ) -> list[Prediction]:
        """The best output for each recording, with its alternatives."""
        is_greedy = not options.is_sampling and options.resolved_beam_size == 1
        prefix = options.target_prefix if isinstance(options, SpeechOptions) else ""
        if is_greedy and self.is_ctc_alone and not (prefix or options.banned_tokens or options.min_new_tokens):
            predictions = self._best_paths(frames, progress)
        else:
            numbers = options.numbers if isinstance(options, SpeechOptions) else None
            outputs = self.search(frames, options, prefix=prefix, lengths=self.positions, numbers=numbers, progress=progress)
            predictions = [best._replace(alternatives=tuple(rest)) for best, *rest in outputs]
        if not (isinstance(options, SpeechOptions) and options.return_alignments):
            return predictions
        return [
            prediction._replace(alignment=self.align(row, prediction))
            for row, prediction in zip(frames, predictions, strict=True)
        ]

    @torch.inference_mode()
    def _best_paths(self, frames: Sequence[Frames], progress: ProgressCallback | None) -> list[Prediction]:
        """Greedy decoding of CTC: the most probable label at each position."""
        predictions: dict[int, Prediction] = {}
        order = sorted(range(len(frames)), key=lambda row: len(frames[row][0]))
        model: Any = self.members[0].model
        for low in range(0, len(order), BATCH_SOURCES):
            rows = order[low : low + BATCH_SOURCES]
            memory = model.encoder(*self.batch([frames[row] for row in rows]))
            log_probs = model.frame_log_probs(memory)
            paths = ctc.best_path(log_probs, memory.token_mask, blank=model.blank)
            scores = log_probs.amax(-1).masked_fill(~memory.token_mask, 0.0).sum(1).tolist()
            for row, path, score in zip(rows, paths, scores, strict=True):
                predictions[row] = Prediction(self.tokenizer.decode(path), [*path, model.blank], score, score)
            if progress is not None:
                progress(len(predictions), len(frames))
        return [predictions[row] for row in range(len(frames))]

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

    # ---- scoring

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[tuple[MediaInput, str]], progress: ProgressCallback | None
    ) -> list[SpeechScore | InvalidInput]:
        """The log-probability of each transcript, and of each of its tokens."""
        results: list[SpeechScore | InvalidInput] = []
        for number, (value, text) in enumerate(pairs, 1):
            (frames,) = self.read([value])
            if isinstance(frames, InvalidInput):
                results.append(frames)
                continue
            ids = self.tokenizer.encode(check_text(text, f"line {number}")).tolist()
            tokens = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
            scores = self.run.model.score(torch.tensor([tokens], device=self.device), None, self.encode([frames]))
            log_probs = scores[0].double().cpu().tolist()
            names = [self.tokenizer.token_text(token) for token in tokens[1:]]
            results.append(SpeechScore(str(value), text, sum(log_probs), names, log_probs))
            if progress is not None:
                progress(number, len(pairs))
        return results

    # ---- evaluating

    def evaluate(self, data: Files | None, options: SpeechEvaluation, progress: ProgressCallback | None) -> Evaluation:
        """Error rates on recordings with transcripts."""
        dataset: Dataset[MediaRecord] = eval_source(self.run.directory, self.run.config, data)
        with TemporaryDirectory(prefix="weft-") as directory:
            stored = [
                write_frames(dataset, reader, Path(directory), f"data.{number}") for number, reader in enumerate(self.readers)
            ]
            texts = references(dataset)
            num_frames = np.stack([np.diff(frames.starts) for frames in stored])
            items = np.flatnonzero((num_frames > 0).all(0))
            frames = [tuple(part.values[part.starts[item] : part.starts[item + 1]] for part in stored) for item in items]
            predictions = self.recognize(frames, options, progress)
            lengths = num_frames[0][items]
        files, expected = [str(file) for file in texts], list(texts.values())
        kept = [expected[item] for item in items]
        statistics = speech_items([prediction.text for prediction in predictions], kept)
        scores = speech_scores(statistics, search=self.signature(options))
        skipped = len(texts) - len(items)
        note = f"{subject(skipped, 'file', 'was', 'were')} skipped" if skipped else ""
        return Evaluation(
            scores_by_name(scores),
            statistics,
            partial(item_predictions, [files[item] for item in items], kept, lengths, statistics),
            "recordings/s",
            len(items),
            notes=tuple(filter(None, [note])),
        )
