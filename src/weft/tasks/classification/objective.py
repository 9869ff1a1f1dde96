"""Classification: training loss, validation and batched inference.

Shapes: N texts, B rows, S positions, K labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.classification.evaluation import ClassifierOutput, score_predictions
from weft.text.tokenizers import Tokenizer
from weft.training.distillation import Outputs
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 8192  # in inference, with padding


def predict_logits(
    model: Any, data: LabeledTexts, device: torch.device, progress: ProgressCallback | None = None, group: Group = ALONE
) -> Tensor:
    """float64 (N, K): logits of the labels, before temperature scaling. The processes of a group share the work."""
    logits, done = torch.zeros(len(data.labels), model.head.num_labels, dtype=torch.float64), 0
    for members, batch in share(by_length(data, batch_tokens=BATCH_TOKENS), group):
        text = map_tensors(EncoderInput(batch.tokens, batch.token_mask, batch.segments), lambda part: part.to(device))
        logits[torch.from_numpy(members)] = model(text).double().cpu()
        done += len(members) * group.size
        if progress is not None:
            progress(min(done, len(logits)), len(logits))
    group.meet()
    return group.sum_(logits)


class ClassificationObjective:
    """Cross-entropy of the labels of each text."""

    unit = "example"
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(
        self,
        *,
        valid: LabeledTexts | None,
        device: torch.device,
        multilabel: bool = False,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
        fits_temperature: bool = True,
    ) -> None:
        self.valid, self.device, self.smoothing, self.fits_temperature = valid, device, smoothing, fits_temperature
        self.multilabel, self.monitors = multilabel, label_metrics(multilabel=multilabel)
        self.weights = None if weights is None else weights.to(device)  # class weights (K,)

    def loss(self, model: Any, batch: TextBatch, carry: None) -> Loss:
        return self._loss(model, model(EncoderInput(batch.tokens, batch.token_mask, batch.segments)), batch)

    def outputs(self, model: Any, batch: TextBatch, carry: None) -> Outputs:
        logits = model(EncoderInput(batch.tokens, batch.token_mask, batch.segments))
        return Outputs(model.head.distributions(logits), self._loss(model, logits, batch))

    def _loss(self, model: Any, logits: Tensor, batch: TextBatch) -> Loss:
        losses = model.head.loss(logits, batch.labels, weights=self.weights, label_smoothing=self.smoothing)
        return Loss(losses.sum(), torch.full((), len(losses), device=losses.device), None, batch.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Scores on the validation data. Also fits the temperature of the head, so that every checkpoint is calibrated, unless
        the run file sets it."""
        if self.valid is None:
            return None
        logits = predict_logits(model, self.valid, self.device, progress, self.group).numpy()
        head, labels = model.head, self.valid.labels
        if self.fits_temperature:
            fit = sigmoid_temperature(logits, labels) if self.multilabel else softmax_temperature(logits, labels[:, 0])
            head.temperature.fill_(fit)
        log_probs = head.log_probs(torch.from_numpy(logits).to(head.temperature.device)).double().cpu().numpy()
        return values(score_predictions(log_probs, labels, self.valid.unseen, multilabel=self.multilabel), self.monitors)


class TextClassifier:
    """A classifier together with its tokenizer."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, max_length: int, device: torch.device, group: Group = ALONE
    ) -> None:
        self.model, self.tokenizer, self.max_length, self.device = model, tokenizer, max_length, device
        self.group = group

    @property
    def temperature(self) -> float:
        """Divisor of the logits, fitted in validation; 1 by default."""
        return float(self.model.head.temperature)

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """int64 (N,): number of tokens of each example over all its texts, including <s> and one </s> per text."""
        column_lengths = [self.tokenizer.encode_concatenated(column)[1] + 1 for column in zip(*texts, strict=True)]
        counts: np.ndarray = 1 + np.stack(column_lengths).sum(axis=0)
        return counts

    @torch.inference_mode()
    def _apply(
        self,
        function: Callable[[EncoderInput], Tensor],
        texts: Sequence[tuple[str, ...]],
        progress: ProgressCallback | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Output of `function` for each example (N, ...), in batches of similar length; bool (N,), which were truncated."""
        eos = np.array([self.tokenizer.eos_id])
        columns = [self.tokenizer.encode_batch(column) for column in zip(*texts, strict=True)]
        rows = [[np.concatenate([ids, eos]) for ids in row] for row in zip(*columns, strict=True)]
        full_lengths = np.array([1 + sum(map(len, row)) for row in rows])
        lengths = np.minimum(full_lengths, self.max_length)
        outputs, done = list[tuple[np.ndarray, np.ndarray]](), 0
        for members in share(length_batches(lengths, batch_tokens=BATCH_TOKENS), self.group):
            batch = EncoderInput(*pack_rows([rows[index] for index in members.tolist()], max_length=self.max_length))
            output = function(map_tensors(batch, lambda part: part.to(self.device))).double().cpu().numpy()
            outputs.append((members, output))
            done += len(members) * self.group.size
            if progress is not None:
                progress(min(done, len(rows)), len(rows))
        # a process without a batch does not know the shape
        shape = max(self.group.gather([list(output.shape[1:]) for _, output in outputs[:1]]))[0]
        results = np.zeros((len(rows), *shape))
        for members, output in outputs:
            results[members] = output
        return sum_arrays(results, self.group), full_lengths > self.max_length

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput:
        """Log-probabilities of the labels, and which texts were truncated."""
        head = self.model.head
        return ClassifierOutput(*self._apply(lambda batch: head.log_probs(self.model(batch)), texts, progress))

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, K): log-probabilities of the labels."""
        return self.classify(texts, progress).log_probs

    def embed(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, D): the pooled vector of each example, the input of the head."""
        return self._apply(self.model.vectors, texts, progress)[0]
