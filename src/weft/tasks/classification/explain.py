"""Classifiers as they are explained: one text or two, and the labels that they get."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.data.text_batching import pack_rows
from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, copies, label, make_side, special, token_spans
from weft.explain.options import ExplainConfig
from weft.explain.sparse_attribution import SparseAttribution, refuse_gradients
from weft.explain.stacks import Stack
from weft.models.encoder import EncoderInput
from weft.tasks.classification.predict import THRESHOLD, ClassPrediction, Texts
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run


def stacks(run: Run[Texts, ClassPrediction]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def _texts(run: Run[Texts, ClassPrediction], text: str) -> list[str]:
    parts = text.split("\t") if run.predictor.columns > 1 else [text]
    if len(parts) != run.predictor.columns:
        raise DataError("input", f"needs {run.predictor.columns} texts, separated by tabs, and has {len(parts)}")
    return parts


def read(run: Run[Texts, ClassPrediction], text: str, options: ExplainConfig) -> ModelInput:
    tokenizer, model = run.vocabulary.tokenizer, run.model
    found, rows, before = list[tuple[int, TokenSpan]](), list[np.ndarray](), 0
    for part in _texts(run, text):
        own = [*token_spans(tokenizer, part, before), special(tokenizer, tokenizer.eos_id)]
        rows.append(np.arange(len(found), len(found) + len(own)))
        found, before = found + own, before + len(part) + 1
    # numbers of tokens are laid out instead of tokens: so it is known which of them were cut
    order, token_mask, segments = pack_rows([rows], max_length=run.config.data.max_length)
    kept = [special(tokenizer, tokenizer.bos_id), *(found[at] for at in order[0, 1:].tolist())]
    side = make_side("text", "encoder.embedder", kept)

    def say(at: Tensor) -> Tensor:
        each = None if segments is None else segments.to(at.device).expand(len(at), -1)
        read = EncoderInput(copies(side.tokens, at), token_mask.to(at.device).expand(len(at), -1), each)
        said: Tensor = model.head.log_probs(model(read))
        return said

    def said() -> list[tuple[int, int]]:
        """All labels that are said, or the best."""
        log_probs = say(torch.zeros(1, dtype=torch.long, device=run.device))[0]
        multilabel = (log_probs.exp() > THRESHOLD).nonzero()[:, 0].tolist()
        return [(0, number) for number in multilabel or [int(log_probs.argmax())]]

    return ModelInput(
        model,
        [side],
        say,
        [TokenSpan("", 0, 0)],
        None if options.target is None else [label(run, options.target)],
        lambda at: run.labels[at],
        len(kept) <= len(found),
        said=said if run.config.data.multilabel else None,
        stacks=stacks(run),
    )


# ---- linear models of terms


def _asked(run: Run[Texts, ClassPrediction], log_probs: np.ndarray, options: ExplainConfig) -> list[int]:
    if options.target is not None:
        return [label(run, options.target)]
    multilabel = np.flatnonzero(np.exp(log_probs) > THRESHOLD).tolist() if run.config.data.multilabel else []
    return multilabel or [int(log_probs.argmax())]


def _some(pieces: list[TokenSpan]) -> list[TokenSpan]:
    if not pieces:
        raise DataError("input", "has no words that the run knows", "there is nothing to explain")
    return pieces


def attribute(run: Run[Texts, ClassPrediction], text: str, options: ExplainConfig) -> SparseAttribution:
    """Labels by a linear model of terms: exactly, unless occlusion is asked for."""
    refuse_gradients(run, options.method, ("coefficients", "occlusion"))
    if options.baseline is not None:
        raise UsageError("baseline", f"not available for {run.config.arch}, which has no embeddings", "remove it")
    whole = tuple(_texts(run, text))
    log_probs = run.model.log_probs([whole])[0]
    label_ids = _asked(run, log_probs, options)
    outputs = [TokenSpan(run.labels[index], 0, 0) for index in label_ids]
    said = log_probs[label_ids]
    if options.method == "occlusion":
        words = list(re.finditer(r"\S+", text))
        fewer = [tuple(_texts(run, text[: word.start()] + text[word.end() :])) for word in words]
        without = run.model.log_probs(fewer)[:, label_ids] if fewer else np.zeros((0, len(label_ids)))
        pieces = _some([TokenSpan(word[0], word.start(), word.end()) for word in words])
        return SparseAttribution(pieces, outputs, (said - without).T, said, "occlusion", "the word left out")
    weight, row = run.model.model.weight, run.model.featurize([whole])
    values = (row.values > 0).astype(np.float64) if run.model.model.binary else row.values
    mine = weight[row.indices][:, label_ids]
    if not run.model.model.multilabel:  # a softmax sees only by how much a label's weight differs from those of all
        mine = mine - weight[row.indices].mean(1, keepdims=True)
    terms = [term for part in run.model.features for term in part.terms]
    credit = (mine * values[:, None]).T
    order = np.argsort(-np.abs(credit).sum(0), kind="stable")
    pieces = _some([TokenSpan(terms[row.indices[at]], 0, 0) for at in order.tolist()])
    told = "a text without terms" if run.model.model.multilabel else "a text without terms, and the mean of all labels"
    return SparseAttribution(pieces, outputs, credit[:, order], said, "coefficients", told, credit.sum(1))


EXPLAIN = Explain(read, stacks, tokenizers=lambda run: [run.vocabulary.tokenizer], attribute=attribute)
