"""Masked language models as they are explained: a text with masks, and the tokens in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import DataError, UsageError
from weft.explain.inputs import Reading, copies, located, make_side, special, wanted_tokens
from weft.explain.lens import Readout
from weft.explain.options import ExplainOptions
from weft.explain.stacks import Stack
from weft.explain.surprisal import Surprise
from weft.explain.view import Piece
from weft.models.encoder import Text
from weft.tasks.masked_lm.predict import Filled, MaskedReader
from weft.tasks.spec import Explain

if TYPE_CHECKING:
    from weft.runs.run import Run

ROWS = 64  # copies of a text that are read at once, each with another mask


def stacks(run: Run[str, Filled]) -> list[Stack]:
    return [Stack("encoder", "encoder.stack", "text", run.settings.model)]


def read(run: Run[str, Filled], text: str, options: ExplainOptions) -> Reading:
    tokenizer, model, before = run.vocabulary, run.model, 0
    found, places = [special(tokenizer, tokenizer.begin)], list[Piece]()
    for gap in run.reader.gaps.finditer(text):
        found += located(tokenizer, text[before : gap.start()], before)
        places.append(Piece("[MASK]", gap.start(), gap.end()))
        found.append((tokenizer.size, places[-1]))
        before = gap.end()
    found += [*located(tokenizer, text[before:], before), special(tokenizer, tokenizer.end)]
    side = make_side("text", "encoder.front", found)
    if fault := run.reader.fault(side.tokens):
        raise DataError(f"input: {fault}")
    gaps = torch.tensor([at for at, token in enumerate(side.tokens) if token == tokenizer.size])

    def say(at: Tensor) -> Tensor:
        tokens = copies(side.tokens, at)
        y = model(Text(tokens, torch.ones_like(tokens, dtype=torch.bool)))
        said: Tensor = model.log_probs(y[torch.arange(len(at)), gaps.to(at.device)[at]])[:, : tokenizer.size]
        return said

    choices = None
    if options.target is not None:
        wanted = wanted_tokens(tokenizer, options.target)
        if len(wanted) > 1:
            raise UsageError(f"--target {options.target!r}: is {len(wanted)} tokens, but a gap is one")
        choices = [wanted[0][0]] * len(places)
    never = (tokenizer.unk, tokenizer.begin, tokenizer.end)
    return Reading(model, [side], say, places, choices, tokenizer.show, never=never, stacks=stacks(run))


def read_unmasked(run: Run[str, Filled], text: str) -> Reading:
    """A text without masks: its vectors, and no predictions."""
    tokenizer, model = run.vocabulary, run.model
    found = [special(tokenizer, tokenizer.begin), *located(tokenizer, text), special(tokenizer, tokenizer.end)]
    side = make_side("text", "encoder.front", found)

    def say(at: Tensor) -> Tensor:
        row = torch.tensor([side.tokens], device=at.device)
        y: Tensor = model(Text(row, torch.ones_like(row, dtype=torch.bool)))
        return y

    return Reading(model, [side], say, [], None, str, stacks=stacks(run))


def readout(run: Run[str, Filled], reading: Reading) -> Readout:
    """What is predicted at each mask."""
    model, mask = run.model, run.vocabulary.size
    masks = [at for at, token in enumerate(reading.sides[-1].tokens) if token == mask]
    # the mask is no answer, and no tokenizer knows it
    return Readout("encoder.stack", lambda y: model.log_probs(y)[:, :mask], masks, [None] * len(masks))


@torch.no_grad()
def surprisal(run: Run[str, Filled], text: str, options: ExplainOptions) -> Surprise:
    """Each token hidden in its turn."""
    tokenizer, model = run.vocabulary, run.model
    found = located(tokenizer, text)
    tokens = [tokenizer.begin, *(number for number, _ in found), tokenizer.end]
    if model.longest is not None and len(tokens) > model.longest:
        raise DataError(f"input: has {len(tokens):,} tokens, but {run.folder.path} reads at most {model.longest}; shorten it")
    if not found:
        raise DataError("input: is empty; there is nothing to be surprised at")
    rows = torch.tensor(tokens, device=run.device).expand(len(found), -1).clone()
    at = torch.arange(len(found), device=run.device)
    wanted = rows[0, 1:-1].clone()
    rows[at, at + 1] = model.mask
    nats = []
    for part in torch.split(at, ROWS):
        y = model(Text(rows[part], torch.ones_like(rows[part], dtype=torch.bool)))
        log_probs = model.log_probs(y[torch.arange(len(part)), part + 1])
        nats.append(-log_probs.gather(1, wanted[part, None])[:, 0])
    return Surprise([piece for _, piece in found], torch.cat(nats).double().cpu().numpy(), "all other tokens")


def room(run: Run[str, Filled]) -> int:
    """How many tokens of a text are read at once, without <s> and </s>."""
    return int(run.model.longest or run.settings.data.window) - 2


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
