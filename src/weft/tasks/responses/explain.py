"""Explanations of models that respond: a prompt in its template, and the response."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.explain.explanation import TokenSpan
from weft.explain.inputs import (
    ModelInput,
    encode_target,
    make_side,
    raise_if_invalid,
    repeat_tokens,
    special_token,
    token_spans,
)
from weft.explain.logit_lens import Readout
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.explain.surprisal import SurprisalResult
from weft.tasks.responses.template import PROMPT
from weft.tasks.spec import Explain
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.run import Run

MAX_NEW_TOKENS = 8  # default length of a response


def stacks(run: Run[str, None]) -> list[Stack]:
    return [Stack("decoder", "stack", "prompt", run.config.model)]


def _prompt_tokens(run: Run[str, None], text: str) -> list[tuple[int, TokenSpan]]:
    """<s> and the tokens of a prompt in the template. Those of the template have no character offsets in the prompt."""
    tokenizer, template = run.vocabulary, run.predictor.template
    before, end = template.turn.index(PROMPT), len(text)
    tokens = token_spans(tokenizer, template.prompt(text), -before)
    inside = [(token, span if span.start >= 0 and span.end <= end else TokenSpan(span.text, 0, 0)) for token, span in tokens]
    return [special_token(tokenizer, tokenizer.bos_id), *inside]


def encode_input(run: Run[str, None], text: str, options: ExplainConfig) -> ModelInput:
    """The prompt followed by the target without its last token. The explained outputs are the tokens of the target."""
    raise_if_invalid(run.predictor.invalid_pairs([(text, options.target or "")]))
    tokenizer, model = run.vocabulary, run.model
    prompt = _prompt_tokens(run, text)
    target = [] if options.target is None else encode_target(tokenizer, options.target)
    side = make_side("prompt", "embedding", [*prompt, *((token, TokenSpan(span.text, 0, 0)) for token, span in target[:-1])])
    side = side._replace(prefix_length=1)

    def log_probs(positions: Tensor) -> Tensor:
        y, _ = model(repeat_tokens(side.tokens, positions))
        result: Tensor = model.head(y[torch.arange(len(positions)), positions + len(prompt) - 1])
        return result

    def logits() -> Tensor:
        y, _ = model(torch.tensor([side.tokens], device=run.device))
        result: Tensor = model.head.logits(y[0])
        return result

    return ModelInput(
        model,
        [side],
        log_probs,
        [TokenSpan("", 0, 0)] * max(1, len(target)),
        [token for token, _ in target] or None,
        tokenizer.token_text,
        banned_tokens=[Tokenizer.unk_id, Tokenizer.bos_id],
        stacks=stacks(run),
        logits=logits,
    )


def readout(run: Run[str, None], model_input: ModelInput) -> Readout:
    """The head applied to each position, which predicts the next token."""
    tokens = model_input.sides[-1].tokens
    following = [*tokens[1:], model_input.targets[-1] if model_input.targets else None]
    return Readout("stack", run.model.head, list(range(len(tokens))), following)


def target_tokens(run: Run[str, None], text: str, options: ExplainConfig) -> list[tuple[int, TokenSpan]]:
    """The target in `options` with </s>, or the greedy response."""
    tokenizer = run.vocabulary
    if options.target is None:
        max_new_tokens = options.max_new_tokens or MAX_NEW_TOKENS
        token_ids = run.generate(text, max_new_tokens=max_new_tokens, temperature=0.0).token_ids
        return [special_token(tokenizer, token) for token in token_ids]
    return [*token_spans(tokenizer, check_text(options.target, "target")), special_token(tokenizer, tokenizer.eos_id)]


def surprisal(run: Run[str, None], text: str, options: ExplainConfig) -> SurprisalResult:
    """The surprisal of each token of the target in `options`, or of the greedy response."""
    target = options.target
    if target is None:
        target = run.generate(text, max_new_tokens=options.max_new_tokens or MAX_NEW_TOKENS, temperature=0.0).text
    score = run.score((text, target))
    spans = [TokenSpan(token, 0, 0) for token in score.tokens]
    return SurprisalResult(spans, -np.array(score.token_log_probs), "the prompt and the tokens before it")


EXPLAIN = Explain(
    encode_input,
    stacks,
    surprisal=surprisal,
    readout=readout,
    target_tokens=target_tokens,
    max_tokens=lambda run: run.config.data.max_length,
    is_single_line=lambda run: False,
    is_recurrent=True,
)
