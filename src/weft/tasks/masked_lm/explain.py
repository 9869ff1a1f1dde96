"""Explanations of masked language models: a text with masks, and the tokens predicted for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, copies, make_side, special, token_spans, wanted_tokens
from weft.explain.logit_lens import Readout
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.explain.surprisal import SurprisalResult
from weft.models.encoder import EncoderInput
from weft.tasks.masked_lm.predict import Filled, MaskedReader
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run

BATCH_ROWS = 64  # copies of a text with different masks in one batch


def stacks(run: Run[str, Filled]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def read(run: Run[str, Filled], text: str, options: ExplainConfig) -> ModelInput:
    tokenizer, model, position = run.vocabulary, run.model, 0
    tokens, spans = [special(tokenizer, tokenizer.bos_id)], list[TokenSpan]()
    for match in run.reader.mask_pattern.finditer(text):
        tokens += token_spans(tokenizer, text[position : match.start()], position)
        spans.append(TokenSpan("[MASK]", match.start(), match.end()))
        tokens.append((tokenizer.vocab_size, spans[-1]))
        position = match.end()
    tokens += [*token_spans(tokenizer, text[position:], position), special(tokenizer, tokenizer.eos_id)]
    side = make_side("text", "encoder.embedder", tokens)
    if problem := run.reader.problem(side.tokens):
        raise DataError("input", *problem)
    masks = torch.tensor([index for index, token in enumerate(side.tokens) if token == tokenizer.vocab_size])

    def logits(positions: Tensor) -> Tensor:
        rows = copies(side.tokens, positions)
        y = model(EncoderInput(rows, torch.ones_like(rows, dtype=torch.bool)))
        masked = y[torch.arange(len(positions)), masks.to(positions.device)[positions]]
        result: Tensor = model.log_probs(masked)[:, : tokenizer.vocab_size]
        return result

    choices = None
    if options.target is not None:
        target = wanted_tokens(tokenizer, options.target)
        if len(target) > 1:
            raise UsageError("target", f"expected one token for a mask, got {len(target)}: {options.target!r}")
        choices = [target[0][0]] * len(spans)
    banned = (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    return ModelInput(model, [side], logits, spans, choices, tokenizer.token_text, banned_tokens=banned, stacks=stacks(run))


def read_unmasked(run: Run[str, Filled], text: str) -> ModelInput:
    """A text without masks, for its hidden states; it has no predictions."""
    tokenizer, model = run.vocabulary, run.model
    tokens = [special(tokenizer, tokenizer.bos_id), *token_spans(tokenizer, text), special(tokenizer, tokenizer.eos_id)]
    side = make_side("text", "encoder.embedder", tokens)

    def hidden_states(positions: Tensor) -> Tensor:
        row = torch.tensor([side.tokens], device=positions.device)
        y: Tensor = model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))
        return y

    return ModelInput(model, [side], hidden_states, [], None, str, stacks=stacks(run))


def readout(run: Run[str, Filled], reading: ModelInput) -> Readout:
    """The head applied to each mask."""
    model, mask = run.model, run.vocabulary.vocab_size
    masks = [index for index, token in enumerate(reading.sides[-1].tokens) if token == mask]
    # the mask itself is not a prediction, and no tokenizer has it
    return Readout("encoder.stack", lambda y: model.log_probs(y)[:, :mask], masks, [None] * len(masks))


@torch.no_grad()
def surprisal(run: Run[str, Filled], text: str, options: ExplainConfig) -> SurprisalResult:
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
    numbers = torch.arange(len(spans), device=run.device)
    targets = rows[0, 1:-1].clone()
    rows[numbers, numbers + 1] = model.mask_id
    nll = []
    for batch in torch.split(numbers, BATCH_ROWS):
        y = model(EncoderInput(rows[batch], torch.ones_like(rows[batch], dtype=torch.bool)))
        log_probs = model.log_probs(y[torch.arange(len(batch)), batch + 1])
        nll.append(-log_probs.gather(1, targets[batch, None])[:, 0])
    return SurprisalResult([span for _, span in spans], torch.cat(nll).double().cpu().numpy(), "all other tokens")


def room(run: Run[str, Filled]) -> int:
    """The maximum number of tokens of a text that are read at once, without <s> and </s>."""
    return int(run.model.max_positions or run.config.data.context_length) - 2


def _line(run: Run[str, Filled]) -> bool:
    reader: MaskedReader = run.reader
    return reader.lines


EXPLAIN = Explain(
    read,
    stacks,
    encode_unmasked=read_unmasked,
    surprisal=surprisal,
    readout=readout,
    max_tokens=room,
    is_single_line=_line,
    has_mask_token=True,
)
