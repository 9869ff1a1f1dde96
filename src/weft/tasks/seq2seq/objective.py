"""The task of encoder-decoders: write the target of a source."""

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
from weft.training.objective import Loss, ProgressCallback

BATCH = 8192  # positions scored at once
GREEDY = PredictionConfig(beam_size=1)


@dataclass(frozen=True)
class Held(PairExamples):
    """Pairs, and what they are scored by: what outputs are compared with, and how BLEU splits that; neither where they are only
    learned from."""

    references: Sequence[Sequence[str]] = ()
    tokenize: str = ""


def pair_nll(model: Any, source: Corpus, target: Corpus, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Nats and number of the tokens of each target, </s> among them, (N,) each."""
    nats, counts = np.zeros(target.lines), np.zeros(target.lines)
    for lines, batch in pairs_by_length(source, target, batch_tokens=BATCH):
        token_mask = batch.token_mask[:, 1:]
        state = model.encode(batch.source.to(device), batch.source_mask.to(device))
        values = -model.score(batch.tokens.to(device), batch.token_mask.to(device), state).double().cpu()
        nats[lines], counts[lines] = values.sum(1).numpy(), token_mask.sum(1).numpy()
    return nats, counts


def pad_sources(sources: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sources (S,) of several lengths as rows (B, S), and what of them to keep."""
    width = max(len(source) for source in sources)
    rows = np.stack([np.pad(source, (0, width - len(source))) for source in sources])
    token_mask = np.arange(width) < np.array([len(source) for source in sources])[:, None]
    return torch.from_numpy(rows).to(device), torch.from_numpy(token_mask).to(device)


class Seq2SeqTask:
    """Nats of each target token, given the source and the tokens before it."""

    unit = "token"
    monitors = TRANSLATION_VALIDATION
    inner, prepare = 0, None

    def __init__(self, *, valid: Held | None, tokenizer: Tokenizer, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.tokenizer, self.device, self.smoothing = valid, tokenizer, device, smoothing

    def loss(self, model: Any, batch: PairBatch, carry: None) -> Loss:
        state = model.encode(batch.source, batch.source_mask)
        nats, _ = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], state, self.smoothing)
        token_mask = batch.token_mask[:, 1:]
        return Loss(nats.masked_fill(~token_mask, 0.0).sum(), token_mask.sum(), None)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Exact nats, and the scores of what the model writes greedily."""
        if self.valid is None:
            return None
        nats, counts = pair_nll(model, self.valid.source, self.valid.target, self.device)
        outputs = self.write(model, self.valid.source, progress)
        items = seq2seq_items(outputs, self.valid.references, tokenize=self.valid.tokenize)
        loss, *written = self.monitors
        # a loss that is no number is told: the loop refuses it
        return {loss.name: float(nats.sum() / counts.sum()), **values(items, written)}

    def write(
        self, model: Any, corpus: Corpus, progress: ProgressCallback | None = None, *, lines: int | None = None
    ) -> list[str]:
        """Greedy outputs for the first lines of a corpus, or for all."""
        starts = corpus.line_starts()
        starts = starts if lines is None else starts[: lines + 1]

        def encode(rows: Sequence[int]) -> Any:
            sources = [corpus.tokens[starts[row] : starts[row + 1]].astype(np.int64) for row in rows]
            return model.encode(*pad_sources(sources, self.device))

        lengths = np.diff(starts).tolist()
        request = PredictionRequest(model, self.tokenizer, encode, lengths, [[]] * len(lengths), self.device)
        return [found[0].text for found in predict(request, GREEDY, progress=progress)]
