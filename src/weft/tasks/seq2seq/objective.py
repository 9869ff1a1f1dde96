"""The task of encoder-decoders: write the target of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.data.corpus import Corpus
from weft.decode.predict import Request, predict
from weft.decode.predict_options import PredictOptions
from weft.metrics.metric import values
from weft.metrics.translation import TRANSLATION_VALIDATION, translation_items
from weft.tasks.seq2seq.order import PairBatch, PairExamples, pairs_by_length
from weft.text.tokenizers import Tokenizer
from weft.train.objective import Loss, Watch

BATCH = 8192  # positions scored at once
GREEDY = PredictOptions(beam=1)


@dataclass(frozen=True)
class Held(PairExamples):
    """Pairs, and what they are scored by: what outputs are compared with, and how BLEU splits that; neither where they are only
    learned from."""

    references: Sequence[Sequence[str]] = ()
    tokenize: str = ""


def nats_of_pairs(model: Any, source: Corpus, target: Corpus, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Nats and number of the tokens of each target, </s> among them, (N,) each."""
    nats, counts = np.zeros(target.lines), np.zeros(target.lines)
    for lines, batch in pairs_by_length(source, target, batch_tokens=BATCH):
        keep = batch.keep[:, 1:]
        state = model.encode(batch.source.to(device), batch.source_keep.to(device))
        values = -model.score(batch.tokens.to(device), batch.keep.to(device), state).double().cpu()
        nats[lines], counts[lines] = values.sum(1).numpy(), keep.sum(1).numpy()
    return nats, counts


def padded_sources(sources: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sources (S,) of several lengths as rows (B, S), and what of them to keep."""
    width = max(len(source) for source in sources)
    rows = np.stack([np.pad(source, (0, width - len(source))) for source in sources])
    keep = np.arange(width) < np.array([len(source) for source in sources])[:, None]
    return torch.from_numpy(rows).to(device), torch.from_numpy(keep).to(device)


class TranslationTask:
    """Nats of each target token, given the source and the tokens before it."""

    unit = "token"
    monitors = TRANSLATION_VALIDATION
    inner, prepare = 0, None

    def __init__(self, *, valid: Held | None, tokenizer: Tokenizer, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.tokenizer, self.device, self.smoothing = valid, tokenizer, device, smoothing

    def loss(self, model: Any, batch: PairBatch, carry: None) -> Loss:
        state = model.encode(batch.source, batch.source_keep)
        nats, _ = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], state, self.smoothing)
        keep = batch.keep[:, 1:]
        return Loss(nats.masked_fill(~keep, 0.0).sum(), keep.sum(), None)

    def validate(self, model: Any, watch: Watch | None = None) -> dict[str, float] | None:
        """Exact nats, and the scores of what the model writes greedily."""
        if self.valid is None:
            return None
        nats, counts = nats_of_pairs(model, self.valid.source, self.valid.target, self.device)
        outputs = self.write(model, self.valid.source, watch)
        items = translation_items(outputs, self.valid.references, tokenize=self.valid.tokenize)
        loss, *written = self.monitors
        # a loss that is no number is told: the loop refuses it
        return {loss.name: float(nats.sum() / counts.sum()), **values(items, written)}

    def write(self, model: Any, corpus: Corpus, watch: Watch | None = None, *, lines: int | None = None) -> list[str]:
        """Greedy outputs for the first lines of a corpus, or for all."""
        starts = corpus.line_starts()
        starts = starts if lines is None else starts[: lines + 1]

        def encode(rows: Sequence[int]) -> Any:
            sources = [corpus.tokens[starts[row] : starts[row + 1]].astype(np.int64) for row in rows]
            return model.encode(*padded_sources(sources, self.device))

        lengths = np.diff(starts).tolist()
        request = Request(model, self.tokenizer, encode, lengths, [[]] * len(lengths), self.device)
        return [found[0].text for found in predict(request, GREEDY, watch=watch)]
