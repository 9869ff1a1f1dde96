"""The training objective of encoder-decoders: predict the target from the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.data.corpus import Corpus
from weft.decode.predict import PredictionRequest, predict
from weft.decode.predict_options import PredictionConfig
from weft.metrics.metric import values
from weft.metrics.seq2seq import TRANSLATION_VALIDATION, seq2seq_items
from weft.tasks.seq2seq.batching import PairBatch, PairExamples, pairs_by_length
from weft.text.tokenizers import Tokenizer
from weft.training.distillation import Outputs, smoothed_nll
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 8192  # positions scored at once
GREEDY = PredictionConfig(beam_size=1)


@dataclass(frozen=True)
class EvalPairs(PairExamples):
    """Pairs with references and the tokenizer of BLEU; training data has neither."""

    references: Sequence[Sequence[str]] = ()
    tokenize: str = ""


def pair_nll(model: Any, source: Corpus, target: Corpus, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood and number of tokens of each target, with </s>, (N,) each."""
    nll, counts = np.zeros(target.lines), np.zeros(target.lines)
    for lines, batch in pairs_by_length(source, target, batch_tokens=BATCH_TOKENS):
        token_mask = batch.token_mask[:, 1:]
        state = model.encode(batch.source.to(device), batch.source_mask.to(device))
        token_nll = -model.score(batch.tokens.to(device), batch.token_mask.to(device), state).double().cpu()
        nll[lines], counts[lines] = token_nll.sum(1).numpy(), token_mask.sum(1).numpy()
    return nll, counts


def pad_rows(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token IDs of sources or targets of different lengths, as padded rows and their token mask, (B, S) each."""
    width = max(len(row) for row in rows)
    padded = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    token_mask = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    return torch.from_numpy(padded).to(device), torch.from_numpy(token_mask).to(device)


class Seq2SeqObjective:
    """Cross-entropy of each target token, given the source and the preceding tokens."""

    unit = "token"
    monitors = TRANSLATION_VALIDATION
    inner_steps, prepare = 0, None

    def __init__(self, *, valid: EvalPairs | None, tokenizer: Tokenizer, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.tokenizer, self.device, self.smoothing = valid, tokenizer, device, smoothing

    def loss(self, model: Any, batch: PairBatch, carry: None) -> Loss:
        state = model.encode(batch.source, batch.source_mask)
        losses, _ = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], state, self.smoothing)
        token_mask = batch.token_mask[:, 1:]
        return Loss(losses.masked_fill(~token_mask, 0.0).sum(), token_mask.sum(), None)

    def outputs(self, model: Any, batch: PairBatch, carry: None) -> Outputs:
        log_probs = model.log_probs(batch.tokens[:, :-1], model.encode(batch.source, batch.source_mask))
        token_mask = batch.token_mask[:, 1:]
        losses = smoothed_nll(log_probs, batch.tokens[:, 1:], self.smoothing)
        return Outputs(log_probs, Loss(losses.masked_fill(~token_mask, 0.0).sum(), token_mask.sum(), None), token_mask)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """The exact loss, and the scores of greedy outputs."""
        if self.valid is None:
            return None
        nll, counts = pair_nll(model, self.valid.source, self.valid.target, self.device)
        outputs = self.greedy_outputs(model, self.valid.source, progress)
        items = seq2seq_items(outputs, self.valid.references, tokenize=self.valid.tokenize)
        loss_metric, *output_metrics = self.monitors
        # a NaN loss is returned as it is: the training loop raises an error
        return {loss_metric.name: float(nll.sum() / counts.sum()), **values(items, output_metrics)}

    def greedy_outputs(
        self, model: Any, corpus: Corpus, progress: ProgressCallback | None = None, *, lines: int | None = None
    ) -> list[str]:
        """Greedy outputs for the first `lines` lines of a corpus, or for all."""
        starts, start = corpus.line_starts(), np.array(corpus.start_tokens.source, np.int64)
        starts = starts if lines is None else starts[: lines + 1]

        def encode(rows: Sequence[int]) -> Any:
            sources = [np.append(start, corpus.tokens[starts[row] : starts[row + 1]].astype(np.int64)) for row in rows]
            return model.encode(*pad_rows(sources, self.device))

        lengths, target_start = np.diff(starts).tolist(), self.tokenizer.start_tokens.target
        request = PredictionRequest(model, self.tokenizer, encode, lengths, [[]] * len(lengths), self.device, target_start)
        return [predictions[0].text for predictions in predict(request, GREEDY, progress=progress)]
