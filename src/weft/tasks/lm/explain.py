"""Explanations of language models: a text and its continuation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError, UsageError
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
from weft.explain.sparse_attribution import SparseAttribution, check_method
from weft.explain.stacks import Stack
from weft.explain.surprisal import SurprisalResult
from weft.runs.eval_data import own_source_or_none
from weft.tasks.lm.predict import LanguageModelPredictor, suppressed_tokens
from weft.tasks.spec import Explain
from weft.text.reading import check_text

if TYPE_CHECKING:
    from weft.runs.run import Run

MAX_NEW_TOKENS = 8  # default length of a continuation
CONTEXT_TOKENS = 4  # of a network, which has no n-gram order


def _bos_tokens(run: Run[str, None]) -> list[tuple[int, TokenSpan]]:
    """The tokens that precede a text, without character offsets."""
    return [special_token(run.vocabulary, token) for token in run.predictor.bos_ids]


def stacks(run: Run[str, None]) -> list[Stack]:
    return [Stack("decoder", "stack", "text", run.config.model)]


def encode_input(run: Run[str, None], text: str, options: ExplainConfig) -> ModelInput:
    """The text followed by the target without its last token. The explained outputs are the tokens of the target."""
    raise_if_invalid(run.predictor.invalid_inputs([text]))
    tokenizer, model = run.vocabulary, run.model
    prompt = [*_bos_tokens(run), *token_spans(tokenizer, text)]
    target = [] if options.target is None else encode_target(tokenizer, options.target)
    # the target has no character offsets in the text
    side = make_side("text", "embedding", [*prompt, *((token, TokenSpan(span.text, 0, 0)) for token, span in target[:-1])])
    side = side._replace(prefix_length=len(run.predictor.bos_ids))

    def log_probs(positions: Tensor) -> Tensor:
        y, _ = model(repeat_tokens(side.tokens, positions))
        result: Tensor = model.head(y[torch.arange(len(positions)), positions + len(prompt) - 1])
        return result

    def logits() -> Tensor:
        y, _ = model(torch.tensor([side.tokens], device=run.device))
        result: Tensor = model.head.logits(y[0])
        return result

    choices, spans = [token for token, _ in target] or None, [TokenSpan("", 0, 0)] * max(1, len(target))
    return ModelInput(
        model,
        [side],
        log_probs,
        spans,
        choices,
        tokenizer.token_text,
        banned_tokens=suppressed_tokens(run),
        stacks=stacks(run),
        logits=logits,
    )


def readout(run: Run[str, None], model_input: ModelInput) -> Readout:
    """The head applied to each position, which predicts the next token."""
    tokens = model_input.sides[-1].tokens
    following = [*tokens[1:], model_input.targets[-1] if model_input.targets else None]
    return Readout("stack", run.model.head, list(range(len(tokens))), following)


def attribute(run: Run[str, None], text: str, options: ExplainConfig) -> SparseAttribution:
    """Occlusion of the next tokens of an n-gram model."""
    check_method(run, options.method, ("occlusion",))
    if options.baseline not in (None, "unk"):
        raise UsageError("baseline", f"{options.baseline!r} is not available for n-gram models", "use 'unk'")
    tokenizer, model = run.vocabulary, run.model
    prompt = [*_bos_tokens(run), *token_spans(tokenizer, text)]
    if options.target is None:
        log_probs = model.start(torch.tensor([[token for token, _ in prompt]]))[0]
        log_probs[:, suppressed_tokens(run)] = float("-inf")
        target = [special_token(tokenizer, int(log_probs.argmax()))]
    else:
        target = encode_target(tokenizer, options.target)
    tokens = [token for token, _ in [*prompt, *target]]
    rows = torch.tensor([tokens] * len(tokens))
    for position in range(len(run.predictor.bos_ids), len(tokens) - 1):
        if tokens[position] not in (tokenizer.bos_id, tokenizer.eos_id):
            rows[position + 1, position] = tokenizer.unk_id  # row 0 is the text itself
    positions = list(range(len(target))) if options.position is None else [options.position - 1]
    if positions[0] >= len(target):
        raise UsageError("position", f"must be from 1 to {len(target)}, got {options.position}")
    scores = model.score(rows).double().numpy()[:, len(prompt) - 1 :]
    values = (scores[:1] - scores[1:]).T[positions]
    for row, position in zip(values, positions, strict=True):
        row[len(prompt) + position :] = 0.0  # later tokens have no effect
    target = [(token, TokenSpan(span.text, 0, 0)) for token, span in target]
    spans = [span for _, span in [*prompt, *target]][:-1]
    outputs = [target[position][1] for position in positions]
    return SparseAttribution(spans, outputs, values, scores[0][positions], "occlusion", "<unk> in its place")


def surprisal(run: Run[str, None], text: str, options: ExplainConfig) -> SurprisalResult:
    """The surprisal of each token, for any language model, including n-gram models."""
    eos = [special_token(run.vocabulary, run.predictor.eos_id)] if run.predictor.eos_id is not None else []
    spans = [span for _, span in [*token_spans(run.vocabulary, text), *eos]]
    if not spans:  # a word tokenizer has no tokens for spaces
        raise DataError("input", "empty text")
    score = run.score(text)
    return SurprisalResult(spans, -np.array(score.token_log_probs), "the tokens before it")


def target_tokens(run: Run[str, None], text: str, options: ExplainConfig) -> list[tuple[int, TokenSpan]]:
    """The target in `options`, or the greedy continuation."""
    tokenizer = run.vocabulary
    if options.target is None:
        max_new_tokens = options.max_new_tokens or MAX_NEW_TOKENS
        token_ids = run.generate(text, max_new_tokens=max_new_tokens, temperature=0.0).token_ids
        return [special_token(tokenizer, token) for token in token_ids]
    eos = [] if run.predictor.eos_id is None else [special_token(tokenizer, tokenizer.eos_id)]
    return [*token_spans(tokenizer, check_text(options.target, "target")), *eos]


def max_ngram_context(run: Run[str, None]) -> int:
    """The maximum number of context tokens in n-gram counts: those of an n-gram model, or a constant for a network."""
    return CONTEXT_TOKENS if run.network is not None else int(run.model.order) - 1


# ---- texts of the run's data


def _first_texts(texts: Iterator[str], max_chars: int, *, join: bool) -> list[str]:
    """The first texts, with at most `max_chars` characters in total; running text is joined."""
    remaining, selected = max_chars, list[str]()
    for text in texts:
        selected.append(text[:remaining])
        remaining -= len(text)
        if remaining <= 0:
            break
    return ["".join(selected)] if join else [text for text in selected if text]


def _truncate(run: Run[str, None], text: str) -> str:
    """A text truncated to the positions of the model."""
    if run.model.max_positions is None:
        return text
    spans = run.vocabulary.offsets(text)[: run.model.max_positions - 1]
    return text[: spans[-1][1]] if spans else ""


def sample_texts(run: Run[str, None], max_chars: int) -> tuple[str, list[str]]:
    """The first split of the run's data that still exists, and texts from it; ("", []) if none does."""
    for split in ("valid", "test", "train"):
        if (source := own_source_or_none(run.directory, run.config, split)) is not None:
            texts = _first_texts(source.texts(), max_chars, join=not run.predictor.reads_lines)
            return split, [_truncate(run, text) for text in texts]
    return "", []


def max_tokens(run: Run[str, None]) -> int:
    """The maximum number of tokens of a text that are read at once."""
    return int(run.config.data.context_length) - len(run.predictor.bos_ids)


def is_single_line(run: Run[str, None]) -> bool:
    predictor: LanguageModelPredictor = run.predictor
    return predictor.reads_lines


EXPLAIN = Explain(
    encode_input,
    stacks,
    attribute=attribute,
    surprisal=surprisal,
    readout=readout,
    target_tokens=target_tokens,
    max_ngram_context=max_ngram_context,
    sample_texts=sample_texts,
    max_tokens=max_tokens,
    is_single_line=is_single_line,
    is_recurrent=True,
)
