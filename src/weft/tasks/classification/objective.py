"""The task of classifiers: say what a text is.

Shapes: N texts, B rows, S positions, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.data.batching import map_tensors
from weft.data.bucketing import by_length, length_batches
from weft.data.text_batching import LabeledTexts, TextBatch, pack_rows
from weft.metrics.calibration import sigmoid_temperature, softmax_temperature
from weft.metrics.classification import label_metrics
from weft.metrics.metric import values
from weft.models.encoder import EncoderInput
from weft.tasks.classification.evaluation import ClassifierOutput, score_predictions
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

BATCH = 8192  # positions read at once


def predict_logits(model: Any, data: LabeledTexts, device: torch.device, progress: ProgressCallback | None = None) -> Tensor:
    """float64 (N, K): the logits of each label for each text, without temperature."""
    logits, done = torch.zeros(len(data.labels), model.head.num_labels, dtype=torch.float64), 0
    for members, batch in by_length(data, batch_tokens=BATCH):
        text = map_tensors(EncoderInput(batch.tokens, batch.token_mask, batch.segments), lambda part: part.to(device))
        logits[torch.from_numpy(members)] = model(text).double().cpu()
        done += len(members)
        if progress is not None:
            progress(done, len(logits))
    return logits


class ClassificationTask:
    """Nats of each text's label, or labels."""

    unit = "example"
    inner_steps, prepare = 0, None

    def __init__(
        self,
        *,
        valid: LabeledTexts | None,
        device: torch.device,
        multilabel: bool = False,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> None:
        self.valid, self.device, self.smoothing = valid, device, smoothing
        self.several, self.monitors = multilabel, label_metrics(multilabel=multilabel)
        self.weights = None if weights is None else weights.to(device)  # (K,), how much each label counts

    def loss(self, model: Any, batch: TextBatch, carry: None) -> Loss:
        scores = model(EncoderInput(batch.tokens, batch.token_mask, batch.segments))
        nats = model.head.loss(scores, batch.labels, weights=self.weights, label_smoothing=self.smoothing)
        return Loss(nats.sum(), torch.tensor(len(nats), device=nats.device), None, batch.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Scores of the validation texts; on them the head's temperature is set, too, so that the weights that are kept say
        probabilities that can be believed."""
        if self.valid is None:
            return None
        scores = predict_logits(model, self.valid, self.device, progress).numpy()
        head, labels = model.head, self.valid.labels
        fitted = sigmoid_temperature(scores, labels) if self.several else softmax_temperature(scores, labels[:, 0])
        head.temperature.fill_(fitted)
        log_probs = head.log_probs(torch.from_numpy(scores).to(head.temperature.device)).double().cpu().numpy()
        return values(score_predictions(log_probs, labels, self.valid.unseen, multilabel=self.several), self.monitors)


class TextClassifier:
    """A classifier that reads text."""

    def __init__(self, model: Any, tokenizer: Tokenizer, *, max_length: int, device: torch.device) -> None:
        self.model, self.tokenizer, self.max_length, self.device = model, tokenizer, max_length, device

    @property
    def temperature(self) -> float:
        """By which scores are divided: 1 where nothing was fitted."""
        return float(self.model.head.temperature)

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """int64 (N,): the tokens of each example, of all its texts, <s> and every </s> counted."""
        sides = [self.tokenizer.encode_concatenated(column)[1] + 1 for column in zip(*texts, strict=True)]
        counts: np.ndarray = 1 + np.stack(sides).sum(axis=0)
        return counts

    @torch.inference_mode()
    def _each(
        self, texts: Sequence[tuple[str, ...]], say: Any, progress: ProgressCallback | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The output of `say` for each text, (N, ...), in batches of similar length; bool (N,): which texts were truncated."""
        end = np.array([self.tokenizer.eos_id])
        columns = [self.tokenizer.encode_batch(column) for column in zip(*texts, strict=True)]
        rows = [[np.concatenate([ids, end]) for ids in row] for row in zip(*columns, strict=True)]
        whole = np.array([1 + sum(map(len, row)) for row in rows])
        lengths = np.minimum(whole, self.max_length)
        results: list[np.ndarray] = [np.zeros(0)] * len(rows)
        done = 0
        for members in length_batches(lengths, batch_tokens=BATCH):
            text = EncoderInput(*pack_rows([rows[index] for index in members.tolist()], max_length=self.max_length))
            output = say(map_tensors(text, lambda part: part.to(self.device))).double().cpu().numpy()
            for index, value in zip(members.tolist(), output, strict=True):
                results[index] = value
            done += len(members)
            if progress is not None:
                progress(done, len(rows))
        return np.stack(results), whole > self.max_length

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput:
        """Log-probabilities of the labels of each text, and which texts were cut."""
        head = self.model.head
        return ClassifierOutput(*self._each(texts, lambda text: head.log_probs(self.model(text)), progress))

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, K): log-probabilities of the labels of each text."""
        return self.classify(texts, progress).log_probs

    def embed(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, D): what the head would read of each text."""
        return self._each(texts, self.model.vectors, progress)[0]
