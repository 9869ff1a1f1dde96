"""What comparisons ask of masked language models: what was read, item by item, and sentences by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.corpus import Corpus, lines_of
from weft.metrics.frequency import by_frequency
from weft.metrics.items import ItemStatistics
from weft.runs.eval_data import token_counts
from weft.tasks.compare_spec import Compare, Predictions, Rate, Sentences, SentenceScores
from weft.tasks.plain_text import decode_between
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.masked_lm.objective import PseudoLogLikelihood


def observe(run: Run[Any, Any], hidden: PseudoLogLikelihood, found: ItemStatistics, corpus: Corpus) -> Predictions:
    """Line by line, or window by window of running text."""
    lengths, classed = found.statistics["tokens"].astype(np.int64), {}
    counts = token_counts(run.directory, "train", run.vocabulary.vocab_size)
    if counts is not None:
        values = {"nats": hidden.nats, "tokens": np.ones(len(hidden.tokens))}
        classed = by_frequency(values, hidden.owners, counts[hidden.tokens], hidden.size)
    edges = np.append(0, np.cumsum(lengths)) if corpus.starts is None else np.asarray(corpus.starts)
    inputs, item = decode_between(run.vocabulary, corpus, edges), "window" if corpus.starts is None else "line"
    return Predictions(found, inputs, [""] * len(inputs), lengths, item, classed)


def score_sentences(
    run: Run[Any, Any], texts: Sequence[str], whole: np.ndarray, progress: ProgressCallback | None
) -> SentenceScores:
    """By the pseudo-log-likelihood (Salazar et al. 2020): the nats of every token, when it alone is hidden."""
    import torch

    from weft.tasks.masked_lm.objective import pseudo_nll

    max_length, lengths = run.model.max_positions, run.vocabulary.encode_concatenated(texts)[1]
    long = np.zeros(len(texts), bool) if max_length is None else lengths + 2 > max_length  # <s> and </s> are positions, too
    kept = ["" if over else text for text, over in zip(texts, long, strict=True)]
    corpus = lines_of(run.vocabulary, kept)
    with torch.inference_mode():
        items = pseudo_nll(run.model, corpus, window=run.config.data.context_length, device=run.device, progress=progress)
    return SentenceScores(-items.statistics["nats"], items.statistics["tokens"].astype(np.int64), long)


COMPARE = Compare(
    outputs=False,
    rate=Rate("pseudo_loss", "nats"),
    sentences=Sentences(score_sentences, whole=True),
)
