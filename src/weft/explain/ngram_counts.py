"""N-gram counts: how often each token follows the last tokens of a text in the training text.

For each context h, from the longest that the model uses to the empty one, and each next token w:

    count(h w)    count(h)    count(h w) / count(h)    P(w | h) of the model

With maximum likelihood estimation the last two are equal; smoothed n-gram models and networks differ from them.
Shapes: N tokens of the training text, M distinct next tokens, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.errors import ModelError, UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explain_spec, special_token, token_spans
from weft.explain.options import ExplainConfig
from weft.models.ngram_counts import with_bos
from weft.plots.bars import Bar, bars
from weft.runs.eval_data import open_own_corpus
from weft.runs.run import AnyRun
from weft.text.reading import check_text

MAX_CONTEXT_CHARS = 24  # of a context in the figure
LEGEND = (("before", "fraction of the next tokens in training", ""), ("after", "P of the model", ""))


class NgramContext(NamedTuple):
    """A context and the tokens that follow it in the training text."""

    spans: list[TokenSpan]
    occurrences: int
    tokens: np.ndarray  # int64 (M,): the next tokens, most frequent first
    counts: np.ndarray  # int64 (M,)
    probs: np.ndarray | None  # (V,): predicted by the model; None for the empty context, which models do not accept


def _corpus(run: AnyRun) -> Corpus | None:
    """The training tokens of a run, if they are stored and made by its tokenizer."""
    with suppress(ModelError):
        corpus = open_own_corpus(run.directory, run.config, "train", check=False)
        return corpus if corpus is not None and corpus.tokenizer == run.vocabulary.hash else None
    return None


def why_no_counts(run: AnyRun) -> str | None:
    """Why counts are not available, or None."""
    if explain_spec(run).max_ngram_context is None:
        return f"task {run.config.task!r} does not predict the next token"
    return None if _corpus(run) is not None else "the training tokens are not in the run directory"


def next_tokens(tokens: np.ndarray, context: list[int]) -> np.ndarray:
    """int64 (n,): the token after each of the n occurrences of a context in `tokens`, (N,)."""
    starts = np.arange(len(tokens) - len(context))
    for i, token in enumerate(context):
        starts = starts[tokens[starts + i] == token]
    return np.asarray(tokens[starts + len(context)])


@torch.no_grad()
def _predict(run: AnyRun, context: list[int]) -> np.ndarray | None:
    """(V,): the probability of each next token; None for an empty context."""
    if not context:
        return None
    log_probs, _ = run.model.start(torch.tensor([context], device=run.device))
    return np.asarray(log_probs[0].double().exp().cpu().numpy())


def _count(run: AnyRun, context: list[tuple[int, TokenSpan]], train_tokens: np.ndarray) -> NgramContext:
    token_ids = [token for token, _ in context]
    following = next_tokens(train_tokens, token_ids)
    following = following[following != run.vocabulary.bos_id]  # <s> is not predicted
    tokens, counts = np.unique(following, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    spans = [span for _, span in context]
    return NgramContext(spans, len(following), tokens[order], counts[order], _predict(run, token_ids))


def _token_data(context: NgramContext, index: int, token_text: Callable[[int], str]) -> dict[str, Any]:
    token, count = int(context.tokens[index]), int(context.counts[index])
    prob = None if context.probs is None else round(float(context.probs[token]), 6)
    return {"token": token_text(token), "count": count, "share": round(count / context.occurrences, 6), "probability": prob}


def _data(context: NgramContext, top: int, token_text: Callable[[int], str]) -> dict[str, Any]:
    return {
        "context": [span.text for span in context.spans],
        "count": context.occurrences,
        "followers": len(context.tokens),
        "tokens": [_token_data(context, i, token_text) for i in range(min(top, len(context.tokens)))],
    }


def _name(context: list[str]) -> str:
    return " ".join(context) or "(empty)"


def _lines(contexts: list[dict[str, Any]]) -> list[str]:
    rows = [["context h", "count(h)", "next w", "count(h w)", "count(h w) / count(h)", "P(w | h)"]]
    for context in contexts:
        first_cells = [_name(context["context"]), f"{context['count']:,}"]
        if not context["count"]:
            rows.append([*first_cells, "not in the training text", "", "", ""])
        for i, token in enumerate(context["tokens"]):
            prob = "" if token["probability"] is None else f"{token['probability']:.4f}"
            numbers = [f"{token['count']:,}", f"{token['share']:.4f}", prob]
            rows.append([*(first_cells if i == 0 else ["", ""]), token["token"], *numbers])
        if context["followers"] > len(context["tokens"]):
            rows.append(["", "", f"(+{context['followers'] - len(context['tokens']):,} more)", "", "", ""])
    return align_columns(rows, left=(0, 2))


def _figures(contexts: list[dict[str, Any]]) -> list[Figure]:
    groups = []
    for context in contexts:
        if not context["count"] or not context["context"]:  # the model has no probabilities for the empty context
            continue
        token_bars = [
            Bar(
                token["token"],
                token["share"],
                token["probability"] or 0.0,
                f"{token['token']}\n{token['count']:,} of {context['count']:,}",
            )
            for token in context["tokens"]
        ]
        groups.append((_name(context["context"])[-MAX_CONTEXT_CHARS:], token_bars))
    return [Figure("Training counts and model probabilities by context", bars(groups, LEGEND))] if groups else []


def counts(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The counts of the last tokens of a text in the training text, and of the tokens that follow them."""
    corpus, max_context = _corpus(run), explain_spec(run).max_ngram_context
    if corpus is None or max_context is None:
        raise UsageError("view", f"counts is not available: {why_no_counts(run)}")
    vocab = run.vocabulary
    tokens = token_spans(vocab, check_text(text, "input"))
    train_tokens = np.asarray(corpus.tokens).astype(np.int64)
    prompt = tokens
    if corpus.starts is not None:  # one sequence per line, each with <s>
        prompt = [special_token(vocab, vocab.bos_id), *tokens]
        train_tokens = with_bos(train_tokens, np.asarray(corpus.starts[:-1]), vocab.bos_id)
    contexts = [
        _data(_count(run, prompt[len(prompt) - size :], train_tokens), options.top, vocab.token_text)
        for size in range(min(max_context(run), len(prompt)), -1, -1)
    ]
    data = {"tokens": list_tokens([span for _, span in tokens]), "contexts": contexts}
    title = "N-gram counts in the training text"
    return Explanation("counts", title, data, _figures(contexts), _lines(contexts), guides.COUNTS)
