"""Inputs and attributions of classifiers for explanations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.data.text_batching import pack_rows
from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, label_id, make_side, repeat_tokens, special_token, token_spans
from weft.explain.options import ExplainConfig
from weft.explain.sparse_attribution import SparseAttribution, check_method
from weft.explain.stacks import Stack
from weft.metrics.classification import THRESHOLD
from weft.models.encoder import EncoderInput
from weft.tasks.classification.predict import ClassPrediction, Texts
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run


def stacks(run: Run[Texts, ClassPrediction]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def _texts(run: Run[Texts, ClassPrediction], text: str) -> list[str]:
    if len(run.members) > 1:
        raise UsageError("explain", "not available for an ensemble", "explain one run")
    parts = text.split("\t") if run.predictor.columns > 1 else [text]
    if len(parts) != run.predictor.columns:
        raise DataError("input", f"expected {run.predictor.columns} tab-separated texts, got {len(parts)}")
    return parts


def read(run: Run[Texts, ClassPrediction], text: str, options: ExplainConfig) -> ModelInput:
    tokenizer, model = run.vocabulary.tokenizer, run.model
    tokens, rows, offset = list[tuple[int, TokenSpan]](), list[np.ndarray](), 0
    for part in _texts(run, text):
        part_tokens = [*token_spans(tokenizer, part, offset), special_token(tokenizer, tokenizer.eos_id)]
        rows.append(np.arange(len(tokens), len(tokens) + len(part_tokens)))
        tokens, offset = tokens + part_tokens, offset + len(part) + 1
    # pack indices instead of token IDs, to know which tokens are truncated
    indices, token_mask, segments = pack_rows([rows], max_length=run.config.data.max_length)
    packed = [special_token(tokenizer, tokenizer.bos_id), *(tokens[index] for index in indices[0, 1:].tolist())]
    side = make_side("text", "encoder.embedder", packed)

    def log_probs_of(rows: Tensor) -> Tensor:
        row_segments = None if segments is None else segments.to(rows.device).expand(len(rows), -1)
        batch = EncoderInput(repeat_tokens(side.tokens, rows), token_mask.to(rows.device).expand(len(rows), -1), row_segments)
        log_probs: Tensor = model.head.log_probs(model(batch))
        return log_probs

    def predicted_labels() -> list[tuple[int, int]]:
        """Position and ID of each predicted label, or of the most probable label if none is predicted."""
        log_probs = log_probs_of(torch.zeros(1, dtype=torch.long, device=run.device))[0]
        label_ids = (log_probs.exp() > THRESHOLD).nonzero()[:, 0].tolist()
        return [(0, label_id) for label_id in label_ids or [int(log_probs.argmax())]]

    return ModelInput(
        model,
        [side],
        log_probs_of,
        [TokenSpan("", 0, 0)],
        None if options.target is None else [label_id(run, options.target)],
        lambda label_id: run.labels[label_id],
        len(packed) <= len(tokens),
        predict=predicted_labels if run.config.data.multilabel else None,
        stacks=stacks(run),
    )


# ---- linear models


def _target_labels(run: Run[Texts, ClassPrediction], log_probs: np.ndarray, options: ExplainConfig) -> list[int]:
    """IDs of the labels to explain: the requested one, or the predicted ones."""
    if options.target is not None:
        return [label_id(run, options.target)]
    predicted = np.flatnonzero(np.exp(log_probs) > THRESHOLD).tolist() if run.config.data.multilabel else []
    return predicted or [int(log_probs.argmax())]


def _require_terms(terms: list[TokenSpan]) -> list[TokenSpan]:
    if not terms:
        raise DataError("input", "has no words that the run knows", "there is nothing to explain")
    return terms


def attribute(run: Run[Texts, ClassPrediction], text: str, options: ExplainConfig) -> SparseAttribution:
    """Attribution of a linear model's labels to terms (exact), or to words with method "occlusion"."""
    check_method(run, options.method, ("coefficients", "occlusion"))
    if options.baseline is not None:
        raise UsageError("baseline", f"not available for {run.config.arch}, which has no embeddings", "remove it")
    texts = tuple(_texts(run, text))
    log_probs = run.model.log_probs([texts])[0]
    label_ids = _target_labels(run, log_probs, options)
    outputs = [TokenSpan(run.labels[label_id], 0, 0) for label_id in label_ids]
    target_log_probs = log_probs[label_ids]
    if options.method == "occlusion":
        words = list(re.finditer(r"\S+", text))
        occluded = [tuple(_texts(run, text[: word.start()] + text[word.end() :])) for word in words]
        without = run.model.log_probs(occluded)[:, label_ids] if occluded else np.zeros((0, len(label_ids)))
        spans = _require_terms([TokenSpan(word[0], word.start(), word.end()) for word in words])
        drops = (target_log_probs - without).T
        return SparseAttribution(spans, outputs, drops, target_log_probs, "occlusion", "the word left out")
    linear, row = run.model.model, run.model.featurize([texts])
    values = (row.values > 0).astype(np.float64) if linear.binary else row.values
    coefficients = linear.weight[row.indices][:, label_ids]
    if not linear.multilabel:  # softmax is invariant to a constant shift: center the weights of each term
        coefficients = coefficients - linear.weight[row.indices].mean(1, keepdims=True)
    attributions = (coefficients * values[:, None]).T  # (labels, terms)
    order = np.argsort(-np.abs(attributions).sum(0), kind="stable")
    vocab = [term for extractor in run.model.features for term in extractor.terms]
    spans = _require_terms([TokenSpan(vocab[row.indices[index]], 0, 0) for index in order.tolist()])
    baseline = "a text without terms" if linear.multilabel else "a text without terms, and the mean of all labels"
    totals = attributions.sum(1)
    return SparseAttribution(spans, outputs, attributions[:, order], target_log_probs, "coefficients", baseline, totals)


EXPLAIN = Explain(read, stacks, tokenizers=lambda run: [run.vocabulary.tokenizer], attribute=attribute)
