"""What the training text has after the last words of a text, by counting: the table that an n-gram model is made of.

For each context, from the longest that the model uses to none:

    count(h w)    count(h)    count(h w) / count(h)    P(w | h) of the model

With maximum likelihood the last two are equal; the other ways of smoothing, and networks, differ from the counts.
Shapes: N tokens of the training text, K of a context.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.data.corpus import Corpus, open_corpus
from weft.errors import ModelError, UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explaining, special, token_spans
from weft.explain.options import ExplainConfig
from weft.models.ngram_counts import with_bos
from weft.plots.bars import Bar, bars
from weft.runs.run import AnyRun
from weft.text.reading import check_text

LEGEND = (("before", "share of what followed in training", ""), ("after", "P of the model", ""))


class NgramContext(NamedTuple):
    """One context, and what followed it."""

    pieces: list[TokenSpan]
    occurrences: int
    tokens: np.ndarray  # int64 (M,): what followed, the most frequent first
    counts: np.ndarray  # int64 (M,)
    probabilities: np.ndarray | None  # (V,): the model's probabilities; None where nothing was ever read so short


def why_no_counts(run: AnyRun) -> str | None:
    if explaining(run).max_ngram_context is None:
        return f"task {run.config.task!r} does not predict the next token"
    return None if _corpus(run) is not None else "the training tokens are not in the run directory"


def _corpus(run: AnyRun) -> Corpus | None:
    with suppress(ModelError):
        corpus = open_corpus(run.directory.data, "train", check=False)
        return corpus if corpus.tokenizer == run.vocabulary.hash else None
    return None


def followers(text: np.ndarray, context: list[int]) -> np.ndarray:
    """int64 (n,): the tokens of a text (N,) that follow a context, one for each place where it stands."""
    size = len(context)
    places = np.arange(len(text) - size)
    for at, token in enumerate(context):
        places = places[text[places + at] == token]
    found: np.ndarray = text[places + size]
    return found


@torch.no_grad()
def _said(run: AnyRun, context: list[int]) -> np.ndarray | None:
    if not context:
        return None
    log_probs, _ = run.model.start(torch.tensor([context], device=run.device))
    found: np.ndarray = log_probs[0].double().exp().cpu().numpy()
    return found


def _counted(run: AnyRun, read: list[tuple[int, TokenSpan]], text: np.ndarray) -> NgramContext:
    context = [number for number, _ in read]
    after = followers(text, context)
    after = after[after != run.vocabulary.bos_id]  # <s> is not predicted
    tokens, counts = np.unique(after, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return NgramContext([piece for _, piece in read], len(after), tokens[order], counts[order], _said(run, context))


def _row(one: NgramContext, at: int, show: Callable[[int], str]) -> dict[str, Any]:
    token, count = int(one.tokens[at]), int(one.counts[at])
    said = None if one.probabilities is None else round(float(one.probabilities[token]), 6)
    return {"token": show(token), "count": count, "share": round(count / one.occurrences, 6), "probability": said}


def _data(one: NgramContext, top: int, show: Callable[[int], str]) -> dict[str, Any]:
    rows = [_row(one, at, show) for at in range(min(top, len(one.tokens)))]
    return {
        "context": [piece.text for piece in one.pieces],
        "count": one.occurrences,
        "followers": len(one.tokens),
        "tokens": rows,
    }


def _name(context: list[str]) -> str:
    return " ".join(context) or "(empty)"


def _lines(contexts: list[dict[str, Any]]) -> list[str]:
    rows = [["context h", "count(h)", "next w", "count(h w)", "count(h w) / count(h)", "P(w | h)"]]
    for one in contexts:
        head = [_name(one["context"]), f"{one['count']:,}"]
        if not one["count"]:
            rows.append([*head, "never seen: no counts to go by", "", "", ""])
        for at, token in enumerate(one["tokens"]):
            said = "" if token["probability"] is None else f"{token['probability']:.4f}"
            numbers = [f"{token['count']:,}", f"{token['share']:.4f}", said]
            rows.append([*(head if at == 0 else ["", ""]), token["token"], *numbers])
        if one["followers"] > len(one["tokens"]):
            rows.append(["", "", f"(+{one['followers'] - len(one['tokens']):,} more)", "", "", ""])
    return align_columns(rows, left=(0, 2))


def _picture(contexts: list[dict[str, Any]]) -> list[Figure]:
    groups = []
    for one in contexts:
        if not one["count"] or not one["context"]:  # a model always reads something
            continue
        progress = [
            Bar(row["token"], row["share"], row["probability"] or 0.0, f"{row['token']}\n{row['count']:,} of {one['count']:,}")
            for row in one["tokens"]
        ]
        groups.append((_name(one["context"])[-24:], progress))
    return [Figure("Training counts and model probabilities by context", bars(groups, LEGEND))] if groups else []


def counts(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The counts of the last tokens of a text in the training text, and of the tokens that follow them."""
    corpus, context = _corpus(run), explaining(run).max_ngram_context
    if corpus is None or context is None:
        raise UsageError("view", f"counts is not available: {why_no_counts(run)}")
    own = token_spans(run.vocabulary, check_text(text, "input"))
    lines = corpus.starts is not None
    read = [special(run.vocabulary, run.vocabulary.bos_id), *own] if lines else own
    starts = None if corpus.starts is None else np.asarray(corpus.starts[:-1])
    tokens = np.asarray(corpus.tokens).astype(np.int64)
    whole = tokens if starts is None else with_bos(tokens, starts, run.vocabulary.bos_id)
    sizes = range(min(context(run), len(read)), -1, -1)
    found = [_data(_counted(run, read[len(read) - size :], whole), options.top, run.vocabulary.token_text) for size in sizes]
    data = {"tokens": list_tokens([piece for _, piece in own]), "contexts": found}
    return Explanation("counts", "What followed in the training text", data, _picture(found), _lines(found), guides.COUNTS)
