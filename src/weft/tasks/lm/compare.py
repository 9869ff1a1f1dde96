"""Language models in comparisons: inputs by item, context policies, and scores of single sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.corpus import Corpus
from weft.errors import UsageError
from weft.metrics.frequency import by_frequency
from weft.metrics.lm import block_size
from weft.runs.eval_data import token_counts
from weft.tasks.compare_spec import Compare, ContextPolicies, FrequencyMetric, Predictions, SentenceScores, SentenceScoring
from weft.tasks.lm.contexts import FULL, resolve_context
from weft.tasks.lm.scoring import items
from weft.tasks.plain_text import decode_between
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.runs.config import RunConfig
    from weft.runs.run import Run

TOKENS, BYTES = 0, 2  # columns of Corpus.cumulative_counts


def text_block(corpus: Corpus) -> int:
    """The bytes per item of running text: bytes instead of tokens, because runs may have different tokenizers."""
    return block_size(int(corpus.cumulative_counts[-1, BYTES]))


def text_edges(corpus: Corpus) -> np.ndarray:
    """int64 (N + 1,): the token offsets where items start, and the end. Items are lines, or blocks of whole lines of running
    text, which do not depend on the tokenizer."""
    if corpus.starts is not None:
        return np.asarray(corpus.starts)
    counts = np.asarray(corpus.cumulative_counts)
    block_starts = np.flatnonzero(np.diff(counts[:, BYTES] // text_block(corpus)) > 0) + 1
    return np.unique(np.concatenate([[0], counts[block_starts, TOKENS], [len(corpus.tokens)]]))


def item_predictions(run: Run[str, None], nll: np.ndarray, corpus: Corpus) -> Predictions:
    """Statistics of each line, or of each block of running text."""
    edges, tokens = text_edges(corpus), np.asarray(corpus.tokens).astype(np.int64)
    lengths, by_class = np.diff(edges), {}
    counts = token_counts(run.directory, run.config, "train", run.vocabulary.vocab_size)
    if counts is not None:
        item_indices = np.repeat(np.arange(len(lengths)), lengths)
        values = {"nats": nll.astype(np.float64), "tokens": np.ones(len(tokens))}
        by_class = by_frequency(values, item_indices, counts[tokens], len(lengths))
    inputs = decode_between(run.vocabulary, corpus, edges)
    # blocks consist of whole lines, so they are longer than `text_block`
    mean_bytes = round(int(corpus.cumulative_counts[-1, BYTES]) / max(1, len(inputs)), -1)
    item = f"block of about {mean_bytes:,.0f} bytes" if corpus.starts is None else "line"
    unknown = float(np.mean(tokens == run.vocabulary.unk_id))
    return Predictions(items(nll, corpus, edges), inputs, [""] * len(inputs), lengths, item, by_class, unk_ratio=unknown)


def check_context(config: RunConfig, text: str, name: str) -> None:
    """Refuse a context policy that the run or row `name` cannot follow."""
    try:
        context = resolve_context(config, text)
    except UsageError as error:
        raise UsageError(name, f"`{error.where}`: {error.problem}", error.fix) from None
    if context.policy == "carry" and config.preset.estimator.by_steps and config.model.position_encoding == "learned":
        problem = f"`context`: {text!r} needs more than the model's {config.data.context_length} positions"
        raise UsageError(name, problem, "use 'stride'")


def score_sentences(
    run: Run[Any, Any], texts: Sequence[str], is_complete: np.ndarray, progress: ProgressCallback | None
) -> SentenceScores:
    """The log-probability of each text; without that of </s> if the text is not a complete sentence."""
    too_long = np.zeros(len(texts), bool)
    too_long[list(run.predictor.invalid_inputs(texts))] = True
    scorable = ["" if is_long else text for text, is_long in zip(texts, too_long, strict=True)]
    scores = run.predictor.score(scorable, progress=progress)
    token_log_probs = [
        score.token_log_probs[: len(score.token_log_probs) - (run.predictor.reads_lines and not complete)]
        for score, complete in zip(scores, is_complete, strict=True)
    ]
    log_probs = np.array([sum(values) for values in token_log_probs], np.float64)
    tokens = np.array([len(values) for values in token_log_probs], np.int64)
    return SentenceScores(np.where(too_long, 0.0, log_probs), tokens, too_long)


COMPARE = Compare(
    has_outputs=False,
    frequency_metric=FrequencyMetric("loss", "nats"),
    contexts=ContextPolicies(
        default=FULL,
        check=check_context,
        resolve=lambda run, policy: str(run.predictor.context(policy)),
        bos_ids=lambda run: run.predictor.bos_ids,
    ),
    sentences=SentenceScoring(score_sentences),
)
