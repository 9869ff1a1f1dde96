"""The training objective of encoder-decoders: predict the target from the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.decode.predict import PredictionRequest, predict
from weft.decode.predict_options import PredictionConfig
from weft.metrics.metric import values
from weft.metrics.seq2seq import TRANSLATION_VALIDATION, seq2seq_items
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import merge, share, sum_arrays
from weft.tasks.encoder_decoder.pair_batch import pad_rows
from weft.tasks.encoder_decoder.pair_objective import PairObjective
from weft.tasks.seq2seq.batching import PairExamples, pairs_by_length
from weft.text.tokenizers import Tokenizer
from weft.training.objective import ProgressCallback

BATCH_TOKENS = 8192  # positions scored at once
GREEDY = PredictionConfig(beam_size=1)


@dataclass(frozen=True)
class EvalPairs(PairExamples):
    """Pairs with references and the tokenizer of BLEU; training data has neither."""

    references: Sequence[Sequence[str]] = ()
    tokenize: str = ""


def pair_nll(
    model: Any, source: Corpus, target: Corpus, device: torch.device, group: Group = ALONE
) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood and number of tokens of each target, with </s>, (N,) each. The processes of a group share the
    work."""
    nll, counts = np.zeros(target.lines), np.zeros(target.lines)
    for lines, batch in share(pairs_by_length(source, target, batch_tokens=BATCH_TOKENS), group):
        token_mask = batch.token_mask[:, 1:]
        state = model.encode(batch.source.to(device), batch.source_mask.to(device))
        token_nll = -model.score(batch.tokens.to(device), batch.token_mask.to(device), state).double().cpu()
        nll[lines], counts[lines] = token_nll.sum(1).numpy(), token_mask.sum(1).numpy()
    return sum_arrays(nll, group), sum_arrays(counts, group)


class Seq2SeqObjective(PairObjective):
    """Cross-entropy of each target token, given the source and the preceding tokens."""

    monitors = TRANSLATION_VALIDATION

    def __init__(self, *, valid: EvalPairs | None, tokenizer: Tokenizer, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.tokenizer, self.device, self.smoothing = valid, tokenizer, device, smoothing

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """The exact loss, and the scores of greedy outputs."""
        if self.valid is None:
            return None
        nll, counts = pair_nll(model, self.valid.source, self.valid.target, self.device, self.group)
        outputs = self._validation_outputs(model, self.valid.source, progress)
        items = seq2seq_items(outputs, self.valid.references, tokenize=self.valid.tokenize)
        loss_metric, *output_metrics = self.monitors
        # a NaN loss is returned as it is: the training loop raises an error
        return {loss_metric.name: float(nll.sum() / counts.sum()), **values(items, output_metrics)}

    def _validation_outputs(self, model: Any, corpus: Corpus, progress: ProgressCallback | None) -> list[str]:
        """Greedy outputs for all lines of a corpus, which the processes of a group share."""
        lines = np.argsort(np.diff(corpus.line_starts()), kind="stable")[self.group.rank :: self.group.size]
        outputs = self._greedy_outputs(model, corpus, lines, progress) if len(lines) else []
        merged = merge(dict(zip(lines.tolist(), outputs, strict=True)), self.group)
        return [merged[line] for line in range(corpus.lines)]

    def greedy_outputs(
        self, model: Any, corpus: Corpus, progress: ProgressCallback | None = None, *, lines: int | None = None
    ) -> list[str]:
        """Greedy outputs for the first `lines` lines of a corpus, or for all."""
        return self._greedy_outputs(model, corpus, np.arange(corpus.lines if lines is None else lines), progress)

    def _greedy_outputs(self, model: Any, corpus: Corpus, lines: np.ndarray, progress: ProgressCallback | None) -> list[str]:
        """Greedy outputs for the lines with indices `lines` (N,)."""
        starts, start = corpus.line_starts(), np.array(corpus.start_tokens.source, np.int64)
        edges = np.stack([starts[lines], starts[lines + 1]], axis=1).tolist()

        def encode(rows: Sequence[int]) -> Any:
            sources = [np.append(start, corpus.tokens[slice(*edges[row])].astype(np.int64)) for row in rows]
            return model.encode(*pad_rows(sources, self.device))

        lengths, target_start = [end - begin for begin, end in edges], self.tokenizer.start_tokens.target
        request = PredictionRequest(model, self.tokenizer, encode, lengths, [[]] * len(lengths), self.device, target_start)
        return [predictions[0].text for predictions in predict(request, GREEDY, progress=progress)]
