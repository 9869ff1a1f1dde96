"""Inputs of taggers for explanations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, label_id, make_side, raise_if_invalid, special_token, token_spans
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.models.tagger import TaggerInput
from weft.tasks.spec import Explain
from weft.tasks.tagging.predict import Sentence, TagPrediction

if TYPE_CHECKING:
    from weft.runs.run import Run


def stacks(run: Run[Sentence, TagPrediction]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def read(run: Run[Sentence, TagPrediction], text: str, options: ExplainConfig) -> ModelInput:
    tokenizer, model, device = run.vocabulary.tokenizer, run.model, run.device
    raise_if_invalid(run.predictor.invalid_inputs([text]))
    word_spans = [TokenSpan(match[0], match.start(), match.end()) for match in re.finditer(r"\S+", text)]
    if not word_spans:
        raise DataError("input", "empty text")
    words = [span.text for span in word_spans]
    sentence = run.predictor.model.sentences([words])
    batch = sentence.batch(np.array([0]))
    word_tokens = [token for span in word_spans for token in token_spans(tokenizer, span.text, span.start)]
    tokens = [special_token(tokenizer, tokenizer.bos_id), *word_tokens, special_token(tokenizer, tokenizer.eos_id)]

    def log_probs_at(positions: Tensor) -> Tensor:
        rows = len(positions)
        parts: list[Any] = [part if part is None else part.to(device).expand(rows, *part.shape[1:]) for part in batch[:-1]]
        inputs = TaggerInput(*parts)
        probs = model.head.marginals(model(inputs), inputs.word_mask)[torch.arange(rows), positions]
        log_probs: Tensor = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        return log_probs

    def predicted_tags() -> list[tuple[int, int]]:
        """Position and tag ID of each word. With a CRF, the best sequence is not always the best tag of each word."""
        return [(position, label_id(run, tag)) for position, tag in enumerate(run.predict([words])[0].tags)]

    targets = None if options.target is None else [label_id(run, options.target)] * len(words)
    return ModelInput(
        model,
        [make_side("text", "encoder.embedder", tokens)],
        log_probs_at,
        word_spans,
        targets,
        lambda tag_id: run.labels[tag_id],
        predict=predicted_tags,
        stacks=stacks(run),
    )


EXPLAIN = Explain(read, stacks, tokenizers=lambda run: [run.vocabulary.tokenizer], has_positions=True)
