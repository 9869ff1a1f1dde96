"""Inputs of reward models for explanations: the reward is explained as the log-odds of a text against one of reward 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.text_batching import pack_rows
from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, make_side, repeat_tokens, special_token, token_spans
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.models.encoder import EncoderInput
from weft.tasks.reward_model.predict import Reward, Texts
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run

OUTCOMES = ("loses", "wins")  # against a text of reward 0


def stacks(run: Run[Texts, Reward]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def read(run: Run[Texts, Reward], text: str, options: ExplainConfig) -> ModelInput:
    """A text, or a prompt and a response separated by a tab. The output is the probability sigmoid(reward)."""
    tokenizer, model = run.vocabulary, run.model
    parts = text.split("\t") if run.predictor.columns > 1 else [text]
    if len(parts) != run.predictor.columns:
        raise DataError("input", f"expected {run.predictor.columns} tab-separated texts, got {len(parts)}")
    tokens, rows, offset = list[tuple[int, TokenSpan]](), list[np.ndarray](), 0
    for part in parts:
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
        rewards: Tensor = model(batch)
        return torch.stack([F.logsigmoid(-rewards), F.logsigmoid(rewards)], dim=1)

    target = None if options.target is None else [_outcome(options.target)]
    return ModelInput(
        model,
        [side],
        log_probs_of,
        [TokenSpan("", 0, 0)],
        target,
        lambda outcome: OUTCOMES[outcome],
        len(packed) <= len(tokens),
        stacks=stacks(run),
    )


def _outcome(name: str) -> int:
    if name not in OUTCOMES:
        raise UsageError("target", f"must be {' or '.join(OUTCOMES)}, got {name!r}")
    return OUTCOMES.index(name)


EXPLAIN = Explain(read, stacks)
