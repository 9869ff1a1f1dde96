"""Explanations of encoder-decoders: a source, and a given target or the model's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.decode.prediction import Prediction
from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, make_side, raise_if_invalid, repeat_tokens, special_token, token_spans
from weft.explain.logit_lens import Readout
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.explain.surprisal import SurprisalResult
from weft.nn.state import select
from weft.tasks.spec import Explain
from weft.text.reading import check_text

if TYPE_CHECKING:
    from weft.runs.run import Run


def stacks(run: Run[str, Prediction]) -> list[Stack]:
    config = run.config.model
    return [
        Stack("encoder", "encoder.stack", "source", config.encoder, ("encoder",), backwards=config.encoder.reverse_source),
        Stack("decoder", "decoder.stack", "output", config.decoder, ("decoder",), has_cross_attention=True),
    ]


def target_tokens(run: Run[str, Prediction], text: str, options: ExplainConfig) -> list[tuple[int, TokenSpan]]:
    """The tokens of the target in `options` with </s>, or of the model's output."""
    tokenizer = run.predictor.tokenizer.target
    if options.target is not None:
        raise_if_invalid(run.predictor.invalid_pairs([(text, options.target)]))
        return [*token_spans(tokenizer, check_text(options.target, "target")), special_token(tokenizer, tokenizer.eos_id)]
    raise_if_invalid(run.predictor.invalid_inputs([text]))
    prediction = run.predict(
        text,
        beam_size=options.beam_size,
        length_penalty=options.length_penalty,
        patience=options.patience,
        max_new_tokens=options.max_new_tokens,
    )
    if not prediction.token_ids:
        raise DataError("input", "empty text")
    spans, position = list[tuple[int, TokenSpan]](), 0
    for token in prediction.token_ids:
        token_text = tokenizer.token_text(token)
        start = -1 if token == tokenizer.eos_id else prediction.text.find(token_text.strip(), position)
        position = position if start < 0 else start + len(token_text.strip())
        spans.append((token, TokenSpan(token_text, max(start, 0), position if start >= 0 else 0)))
    return spans


def encode_input(run: Run[str, Prediction], text: str, options: ExplainConfig) -> ModelInput:
    """A source, and the target or output without its last token. The explained outputs are the tokens of the target."""
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("explain", "not available for an ensemble", "explain one run")
    tokenizers, model = run.predictor.tokenizer, run.members[0].model
    source_start = [special_token(tokenizers.source, token) for token in tokenizers.source.start_tokens.source]
    source = [*source_start, *token_spans(tokenizers.source, text)]
    source.append(special_token(tokenizers.source, tokenizers.source.eos_id))
    start = [special_token(tokenizers.target, token) for token in tokenizers.target.start_tokens.target]
    target = [*start, *target_tokens(run, text, options)]
    encoder_side = make_side("source", "encoder.embedder", source)._replace(prefix_length=len(source_start))
    decoder_side = make_side("output", "decoder.embedder", target[:-1])._replace(prefix_length=len(start))

    def logits(positions: Tensor) -> Tensor:
        tokens = repeat_tokens(encoder_side.tokens, positions)
        state = model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool))
        y, _ = model(repeat_tokens(decoder_side.tokens, positions), state)
        result: Tensor = model.head(y[torch.arange(len(positions)), positions + len(start) - 1], state[1])
        return result

    tokens, spans = [token for token, _ in target[len(start) :]], [span for _, span in target[len(start) :]]
    decoded, token_text = tokenizers.target.decode(tokens), tokenizers.target.token_text
    sides = [encoder_side, decoder_side]
    return ModelInput(model, sides, logits, spans, tokens, token_text, output_text=decoded, stacks=stacks(run))


def readout(run: Run[str, Prediction], model_input: ModelInput) -> Readout:
    """The head applied to each position of the output, which predicts the next token."""
    model = run.members[0].model

    def head(y: Tensor) -> Tensor:
        source = torch.tensor([model_input.sides[0].tokens], device=y.device)
        _, head_state = model.encode(source, torch.ones_like(source, dtype=torch.bool))
        # a head with a copy mechanism attends to the source for each position as for a separate row
        result: Tensor = model.head(y, select(head_state, torch.zeros(len(y), dtype=torch.long, device=y.device)))
        return result

    tokens = model_input.sides[-1].tokens
    following = [*tokens[1:], model_input.targets[-1] if model_input.targets else None]
    return Readout("decoder.stack", head, list(range(len(tokens))), following)


def surprisal(run: Run[str, Prediction], text: str, options: ExplainConfig) -> SurprisalResult:
    """The surprisal of each token of the target in `options`, or of the model's output."""
    tokens = target_tokens(run, text, options)
    target = options.target
    if target is None:
        target = run.predictor.tokenizer.target.decode([token for token, _ in tokens])
        tokens = [
            *token_spans(run.predictor.tokenizer.target, target),
            special_token(run.predictor.tokenizer.target, run.predictor.tokenizer.target.eos_id),
        ]
    score = run.score((text, target))
    spans = [span for _, span in tokens]
    return SurprisalResult(spans, -np.array(score.token_log_probs), "the source and the tokens before it")


EXPLAIN = Explain(
    encode_input,
    stacks,
    tokenizers=lambda run: list(run.predictor.tokenizer),
    surprisal=surprisal,
    readout=readout,
    target_tokens=target_tokens,
    is_recurrent=True,
    reads_records=True,
)
