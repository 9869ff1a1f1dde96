"""What comparisons ask of language models: what was read, item by item, and sentences by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.corpus import Corpus
from weft.errors import UsageError
from weft.metrics.frequency import by_frequency
from weft.metrics.lm import block_size
from weft.runs.eval_data import token_counts
from weft.tasks.compare_spec import Compare, Contexts, Predictions, Rate, Sentences, SentenceScores
from weft.tasks.lm.contexts import FULL, chosen_context
from weft.tasks.lm.scoring import items
from weft.tasks.plain_text import decode_between
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.runs.config import RunConfig
    from weft.runs.run import Run


def text_block(corpus: Corpus) -> int:
    """The bytes of an item of running text; bytes, and not tokens, for runs may have tokenizers of their own."""
    return block_size(int(corpus.marks[-1, 2]))


def text_edges(corpus: Corpus) -> np.ndarray:
    """int64 (N + 1,): the tokens where items start, and the end: of lines, or of running text in blocks of whole lines, which
    are the same whatever the tokenizer."""
    if corpus.starts is not None:
        return np.asarray(corpus.starts)
    marks = np.asarray(corpus.marks)
    begins = np.flatnonzero(np.diff(marks[:, 2] // text_block(corpus)) > 0) + 1
    return np.unique(np.concatenate([[0], marks[begins, 0], [len(corpus.tokens)]]))


def observe(run: Run[str, None], nats: np.ndarray, corpus: Corpus) -> Predictions:
    """Line by line, or block by block of running text."""
    edges, tokens = text_edges(corpus), np.asarray(corpus.tokens).astype(np.int64)
    lengths, classed = np.diff(edges), {}
    counts = token_counts(run.directory, "train", run.vocabulary.vocab_size)
    if counts is not None:
        owners = np.repeat(np.arange(len(lengths)), lengths)
        values = {"nats": nats.astype(np.float64), "tokens": np.ones(len(tokens))}
        classed = by_frequency(values, owners, counts[tokens], len(lengths))
    inputs = decode_between(run.vocabulary, corpus, edges)
    each = round(int(corpus.marks[-1, 2]) / max(1, len(inputs)), -1)  # blocks are whole lines, so longer than was asked for
    item = f"block of about {each:,.0f} bytes" if corpus.starts is None else "line"
    unknown = float(np.mean(tokens == run.vocabulary.unk_id))
    return Predictions(items(nats, corpus, edges), inputs, [""] * len(inputs), lengths, item, classed, unknown=unknown)


def refuse_context(config: RunConfig, text: str, name: str) -> None:
    """Refuse a policy that the run, or the row, called `name` can't follow."""
    try:
        found = chosen_context(config, text)
    except UsageError as error:
        raise UsageError(name, f"{error}") from None
    if found.policy == "carry" and config.preset.estimator.by_steps and config.model.position_encoding == "learned":
        fix = f"the model reads at most {config.data.context_length} positions; use 'stride'"
        raise UsageError(name, f"--context: {text!r} runs on, but {fix}")


def score_sentences(
    run: Run[Any, Any], texts: Sequence[str], whole: np.ndarray, progress: ProgressCallback | None
) -> SentenceScores:
    """By the sum of the log-probabilities of its tokens. A text that is not whole has no end that could be predicted."""
    long = np.zeros(len(texts), bool)
    long[list(run.reader.invalid_inputs(texts))] = True
    found = run.reader.score(["" if over else text for text, over in zip(texts, long, strict=True)], watch=progress)
    counted = [
        line.log_probs[: len(line.log_probs) - (run.reader.lines and not ends)] for line, ends in zip(found, whole, strict=True)
    ]
    log_probs = np.array([sum(values) for values in counted], np.float64)
    tokens = np.array([len(values) for values in counted], np.int64)
    return SentenceScores(np.where(long, 0.0, log_probs), tokens, long)


COMPARE = Compare(
    outputs=False,
    rate=Rate("loss", "nats"),
    contexts=Contexts(
        default=FULL,
        check=refuse_context,
        follow=lambda run, policy: str(run.reader.context(policy)),
        opening=lambda run: run.reader.opening,
    ),
    sentences=Sentences(score_sentences),
)
