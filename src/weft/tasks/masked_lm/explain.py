"""Explanations of masked language models: a text with masks, and the tokens predicted for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, encode_target, make_side, repeat_tokens, special_token, token_spans
from weft.explain.logit_lens import Readout
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.explain.surprisal import SurprisalResult
from weft.models.encoder import EncoderInput
from weft.tasks.masked_lm.predict import MaskedLMPredictor, MaskPredictions
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run

BATCH_ROWS = 64  # repeat_tokens of a text with different masks in one batch


def stacks(run: Run[str, MaskPredictions]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def encode_input(run: Run[str, MaskPredictions], text: str, options: ExplainConfig) -> ModelInput:
    """A text with masks. The explained outputs are the masks."""
    tokenizer, model, position = run.vocabulary, run.model, 0
    tokens, spans = [special_token(tokenizer, tokenizer.bos_id)], list[TokenSpan]()
    for match in run.predictor.mask_pattern.finditer(text):
        tokens += token_spans(tokenizer, text[position : match.start()], position)
        spans.append(TokenSpan("[MASK]", match.start(), match.end()))
        tokens.append((tokenizer.vocab_size, spans[-1]))
        position = match.end()
    tokens += [*token_spans(tokenizer, text[position:], position), special_token(tokenizer, tokenizer.eos_id)]
    side = make_side("text", "encoder.embedder", tokens)
    if problem := run.predictor.problem(side.tokens):
        raise DataError("input", *problem)
    masks = torch.tensor([index for index, token in enumerate(side.tokens) if token == tokenizer.vocab_size])

    def logits(positions: Tensor) -> Tensor:
        rows = repeat_tokens(side.tokens, positions)
        y = model(EncoderInput(rows, torch.ones_like(rows, dtype=torch.bool)))
        masked = y[torch.arange(len(positions)), masks.to(positions.device)[positions]]
        result: Tensor = model.log_probs(masked)[:, : tokenizer.vocab_size]
        return result

    choices = None
    if options.target is not None:
        target = encode_target(tokenizer, options.target)
        if len(target) > 1:
            raise UsageError("target", f"expected one token for a mask, got {len(target)}: {options.target!r}")
        choices = [target[0][0]] * len(spans)
    banned = (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    return ModelInput(model, [side], logits, spans, choices, tokenizer.token_text, banned_tokens=banned, stacks=stacks(run))


def encode_unmasked(run: Run[str, MaskPredictions], text: str) -> ModelInput:
    """A text without masks, for its hidden states; it has no predictions."""
    tokenizer, model = run.vocabulary, run.model
    tokens = [
        special_token(tokenizer, tokenizer.bos_id),
        *token_spans(tokenizer, text),
        special_token(tokenizer, tokenizer.eos_id),
    ]
    side = make_side("text", "encoder.embedder", tokens)

    def hidden_states(positions: Tensor) -> Tensor:
        row = torch.tensor([side.tokens], device=positions.device)
        y: Tensor = model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))
        return y

    return ModelInput(model, [side], hidden_states, [], None, str, stacks=stacks(run))


def readout(run: Run[str, MaskPredictions], model_input: ModelInput) -> Readout:
    """The head applied to each mask."""
    model, mask = run.model, run.vocabulary.vocab_size
    masks = [index for index, token in enumerate(model_input.sides[-1].tokens) if token == mask]
    # the mask itself is not a prediction, and no tokenizer has it
    return Readout("encoder.stack", lambda y: model.log_probs(y)[:, :mask], masks, [None] * len(masks))


@torch.no_grad()
def surprisal(run: Run[str, MaskPredictions], text: str, options: ExplainConfig) -> SurprisalResult:
    """The surprisal of each token while only it is masked."""
    tokenizer, model = run.vocabulary, run.model
    spans = token_spans(tokenizer, text)
    tokens = [tokenizer.bos_id, *(token for token, _ in spans), tokenizer.eos_id]
    if model.max_positions is not None and len(tokens) > model.max_positions:
        problem = f"{len(tokens):,} tokens exceed the model's limit of {model.max_positions}"
        raise DataError("input", problem, "shorten it")
    if not spans:
        raise DataError("input", "empty text")
    rows = torch.tensor(tokens, device=run.device).expand(len(spans), -1).clone()
    indices = torch.arange(len(spans), device=run.device)
    targets = rows[0, 1:-1].clone()
    rows[indices, indices + 1] = model.mask_id
    nll = []
    for batch in torch.split(indices, BATCH_ROWS):
        y = model(EncoderInput(rows[batch], torch.ones_like(rows[batch], dtype=torch.bool)))
        log_probs = model.log_probs(y[torch.arange(len(batch)), batch + 1])
        nll.append(-log_probs.gather(1, targets[batch, None])[:, 0])
    return SurprisalResult([span for _, span in spans], torch.cat(nll).double().cpu().numpy(), "all other tokens")


def max_tokens(run: Run[str, MaskPredictions]) -> int:
    """The maximum number of tokens of a text that are read at once, without <s> and </s>."""
    return int(run.model.max_positions or run.config.data.context_length) - 2


def is_single_line(run: Run[str, MaskPredictions]) -> bool:
    predictor: MaskedLMPredictor = run.predictor
    return predictor.reads_lines


EXPLAIN = Explain(
    encode_input,
    stacks,
    encode_unmasked=encode_unmasked,
    surprisal=surprisal,
    readout=readout,
    max_tokens=max_tokens,
    is_single_line=is_single_line,
    has_mask_token=True,
)
