"""Masked language models in comparisons: inputs by item, and scores of single sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.corpus import Corpus, corpus_from_lines
from weft.metrics.frequency import by_frequency
from weft.metrics.items import ItemStatistics
from weft.runs.eval_data import token_counts
from weft.tasks.compare_spec import Compare, FrequencyMetric, Predictions, SentenceScores, SentenceScoring
from weft.tasks.plain_text import decode_between
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.masked_lm.objective import PseudoLogLikelihood


def item_predictions(run: Run[Any, Any], likelihood: PseudoLogLikelihood, items: ItemStatistics, corpus: Corpus) -> Predictions:
    """Statistics of each line, or of each window of running text."""
    lengths, by_class = items.statistics["tokens"].astype(np.int64), {}
    counts = token_counts(run.directory, run.config, "train", run.vocabulary.vocab_size)
    if counts is not None:
        values = {"nats": likelihood.nll, "tokens": np.ones(len(likelihood.tokens))}
        by_class = by_frequency(values, likelihood.items, counts[likelihood.tokens], likelihood.size)
    edges = np.append(0, np.cumsum(lengths)) if corpus.starts is None else np.asarray(corpus.starts)
    inputs, item = decode_between(run.vocabulary, corpus, edges), "window" if corpus.starts is None else "line"
    return Predictions(items, inputs, [""] * len(inputs), lengths, item, by_class)


def score_sentences(
    run: Run[Any, Any], texts: Sequence[str], is_complete: np.ndarray, progress: ProgressCallback | None
) -> SentenceScores:
    """The pseudo-log-likelihood (Salazar et al. 2020) of each text: every token is predicted while only it is masked."""
    import torch

    from weft.tasks.masked_lm.objective import pseudo_nll

    max_length, lengths = run.model.max_positions, run.vocabulary.encode_concatenated(texts)[1]
    too_long = np.zeros(len(texts), bool) if max_length is None else lengths + 2 > max_length  # with <s> and </s>
    corpus = corpus_from_lines(run.vocabulary, ["" if is_long else text for text, is_long in zip(texts, too_long, strict=True)])
    with torch.inference_mode():
        items = pseudo_nll(run.model, corpus, window=run.config.data.context_length, device=run.device, progress=progress)
    return SentenceScores(-items.statistics["nats"], items.statistics["tokens"].astype(np.int64), too_long)


COMPARE = Compare(
    has_outputs=False,
    frequency_metric=FrequencyMetric("pseudo_loss", "nats"),
    sentences=SentenceScoring(score_sentences, bidirectional=True),
)
