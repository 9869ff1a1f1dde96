"""Masked language models as they are explained: a text with masks, and the tokens in their place."""

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

ROWS = 64  # copies of a text that are read at once, each with another mask


def stacks(run: Run[str, Filled]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.config.model)]


def read(run: Run[str, Filled], text: str, options: ExplainConfig) -> ModelInput:
    tokenizer, model, before = run.vocabulary, run.model, 0
    found, places = [special(tokenizer, tokenizer.bos_id)], list[TokenSpan]()
    for gap in run.reader.gaps.finditer(text):
        found += token_spans(tokenizer, text[before : gap.start()], before)
        places.append(TokenSpan("[MASK]", gap.start(), gap.end()))
        found.append((tokenizer.vocab_size, places[-1]))
        before = gap.end()
    found += [*token_spans(tokenizer, text[before:], before), special(tokenizer, tokenizer.eos_id)]
    side = make_side("text", "encoder.embedder", found)
    if problem := run.reader.fault(side.tokens):
        raise DataError("input", f"{problem}")
    gaps = torch.tensor([at for at, token in enumerate(side.tokens) if token == tokenizer.vocab_size])

    def say(at: Tensor) -> Tensor:
        tokens = copies(side.tokens, at)
        y = model(EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool)))
        said: Tensor = model.log_probs(y[torch.arange(len(at)), gaps.to(at.device)[at]])[:, : tokenizer.vocab_size]
        return said

    choices = None
    if options.target is not None:
        wanted = wanted_tokens(tokenizer, options.target)
        if len(wanted) > 1:
            raise UsageError(f"--target {options.target!r}", f"is {len(wanted)} tokens, but a gap is one")
        choices = [wanted[0][0]] * len(places)
    never = (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    return ModelInput(model, [side], say, places, choices, tokenizer.token_text, banned_tokens=never, stacks=stacks(run))


def read_unmasked(run: Run[str, Filled], text: str) -> ModelInput:
    """A text without masks: its vectors, and no predictions."""
    tokenizer, model = run.vocabulary, run.model
    found = [special(tokenizer, tokenizer.bos_id), *token_spans(tokenizer, text), special(tokenizer, tokenizer.eos_id)]
    side = make_side("text", "encoder.embedder", found)

    def say(at: Tensor) -> Tensor:
        row = torch.tensor([side.tokens], device=at.device)
        y: Tensor = model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))
        return y

    return ModelInput(model, [side], say, [], None, str, stacks=stacks(run))


def readout(run: Run[str, Filled], reading: ModelInput) -> Readout:
    """What is predicted at each mask."""
    model, mask = run.model, run.vocabulary.vocab_size
    masks = [at for at, token in enumerate(reading.sides[-1].tokens) if token == mask]
    # the mask is no answer, and no tokenizer knows it
    return Readout("encoder.stack", lambda y: model.log_probs(y)[:, :mask], masks, [None] * len(masks))


@torch.no_grad()
def surprisal(run: Run[str, Filled], text: str, options: ExplainConfig) -> SurprisalResult:
    """Each token hidden in its turn."""
    tokenizer, model = run.vocabulary, run.model
    found = token_spans(tokenizer, text)
    tokens = [tokenizer.bos_id, *(number for number, _ in found), tokenizer.eos_id]
    if model.max_positions is not None and len(tokens) > model.max_positions:
        raise DataError(
            "input", f"has {len(tokens):,} tokens, but {run.directory.path} reads at most {model.max_positions}", "shorten it"
        )
    if not found:
        raise DataError("input", "is empty", "there is nothing to be surprised at")
    rows = torch.tensor(tokens, device=run.device).expand(len(found), -1).clone()
    at = torch.arange(len(found), device=run.device)
    wanted = rows[0, 1:-1].clone()
    rows[at, at + 1] = model.mask_id
    nats = []
    for part in torch.split(at, ROWS):
        y = model(EncoderInput(rows[part], torch.ones_like(rows[part], dtype=torch.bool)))
        log_probs = model.log_probs(y[torch.arange(len(part)), part + 1])
        nats.append(-log_probs.gather(1, wanted[part, None])[:, 0])
    return SurprisalResult([piece for _, piece in found], torch.cat(nats).double().cpu().numpy(), "all other tokens")


def room(run: Run[str, Filled]) -> int:
    """How many tokens of a text are read at once, without <s> and </s>."""
    return int(run.model.max_positions or run.config.data.context_length) - 2


def _line(run: Run[str, Filled]) -> bool:
    reader: MaskedReader = run.reader
    return reader.lines


EXPLAIN = Explain(
    read,
    stacks,
    read_unmasked=read_unmasked,
    surprisal=surprisal,
    readout=readout,
    room=room,
    line=_line,
    masks=True,
)
