"""Attribution for models without gradients: n-gram models, and linear classifiers of terms.

    occlusion    what is lost where a token becomes <unk> (n-gram), or where a word is left out (classifiers)
    exact        of linear classifiers: the weight of each term times its value, which adds up to the score

Shapes: K questions, N tokens, C terms.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.errors import DataError, UsageError
from weft.explain.inputs import label, located, never_said, opening, special, texts_of, wanted_tokens
from weft.explain.options import ExplainOptions
from weft.explain.view import Piece


class Counted(NamedTuple):
    """What was found out about a text."""

    pieces: list[Piece]  # N: tokens, words or terms
    outputs: list[Piece]  # K
    values: np.ndarray  # (K, N)
    said: np.ndarray  # (K,): log-probabilities
    method: str
    baseline: str  # in words
    added: np.ndarray | None = None  # (K,): what the values add up to


def _refuse_gradients(run: Any, method: str | None, known: tuple[str, ...]) -> None:
    if method is not None and method not in known:
        others = " or ".join(f"--method {name}" for name in known)
        raise UsageError(f"--method {method}: a run of kind {run.settings.kind!r} has no gradients; use {others}")


def of_ngrams(run: Any, text: str, options: ExplainOptions) -> Counted:
    """Next tokens of a language model that counts."""
    _refuse_gradients(run, options.method, ("occlusion",))
    if options.baseline not in (None, "unk"):
        raise UsageError(f"--baseline {options.baseline}: n-grams have no vectors; a token can only become unk")
    tokenizer, model = run.vocabulary, run.model
    own = [*opening(run), *located(tokenizer, text)]
    if options.target is None:
        said = model.start(torch.tensor([[number for number, _ in own]]))[0]
        said[:, never_said(run)] = float("-inf")
        wanted = [special(tokenizer, int(said.argmax()))]
    else:
        wanted = wanted_tokens(tokenizer, options.target)
    tokens = [number for number, _ in [*own, *wanted]]
    rows = torch.tensor([tokens] * len(tokens))
    for at in range(len(run.reader.opening), len(tokens) - 1):
        if tokens[at] not in (tokenizer.begin, tokenizer.end):
            rows[at + 1, at] = tokenizer.unk  # row 0 is the text itself
    places = list(range(len(wanted))) if options.position is None else [options.position - 1]
    if places[0] >= len(wanted):
        raise UsageError(f"--position: must be from 1 to {len(wanted)}, not {options.position}")
    scores = model.score(rows).double().numpy()[:, len(own) - 1 :]
    values = (scores[:1] - scores[1:]).T[places]
    for row, place in zip(values, places, strict=True):
        row[len(own) + place :] = 0.0  # what comes later did nothing
    after = [(number, Piece(piece.text, 0, 0)) for number, piece in wanted]
    pieces = [piece for _, piece in [*own, *after]][:-1]
    outputs = [after[place][1] for place in places]
    return Counted(pieces, outputs, values, scores[0][places], "occlusion", "<unk> in its place")


def _asked(run: Any, log_probs: np.ndarray, options: ExplainOptions) -> list[int]:
    if options.target is not None:
        return [label(run, options.target)]
    several = np.flatnonzero(np.exp(log_probs) > 0.5).tolist() if run.settings.data.multi else []
    return several or [int(log_probs.argmax())]


def _some(pieces: list[Piece]) -> list[Piece]:
    if not pieces:
        raise DataError("input: has no words that the run knows; there is nothing to explain")
    return pieces


def of_terms(run: Any, text: str, options: ExplainOptions) -> Counted:
    """Labels by a linear model of terms: exactly, unless occlusion is asked for."""
    _refuse_gradients(run, options.method, ("exact", "occlusion"))
    if options.baseline is not None:
        raise UsageError(f"--baseline {options.baseline}: terms have no vectors; a word can only be left out")
    whole = tuple(texts_of(run, text))
    log_probs = run.model.log_probs([whole])[0]
    asked = _asked(run, log_probs, options)
    outputs = [Piece(run.labels[at], 0, 0) for at in asked]
    said = log_probs[asked]
    if options.method == "occlusion":
        words = list(re.finditer(r"\S+", text))
        fewer = [tuple(texts_of(run, text[: word.start()] + text[word.end() :])) for word in words]
        without = run.model.log_probs(fewer)[:, asked] if fewer else np.zeros((0, len(asked)))
        pieces = _some([Piece(word[0], word.start(), word.end()) for word in words])
        return Counted(pieces, outputs, (said - without).T, said, "occlusion", "the word left out")
    weight, row = run.model.model.weight.numpy(), run.model.sparse([whole])
    values = (row.values > 0).astype(np.float64) if run.model.model.binary else row.values
    mine = weight[row.indices][:, asked]
    if not run.model.model.multi:  # a softmax sees only by how much a label's weight differs from those of all
        mine = mine - weight[row.indices].mean(1, keepdims=True)
    terms = [term for part in run.model.features for term in part.terms]
    credit = (mine * values[:, None]).T
    order = np.argsort(-np.abs(credit).sum(0), kind="stable")
    pieces = _some([Piece(terms[row.indices[at]], 0, 0) for at in order.tolist()])
    told = "a text without terms" if run.model.model.multi else "a text without terms, and the mean of all labels"
    return Counted(pieces, outputs, credit[:, order], said, "exact", told, credit.sum(1))
