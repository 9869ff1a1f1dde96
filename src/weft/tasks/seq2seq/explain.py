"""Encoder-decoders as they are explained: a source, and the output that is given or found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.decode.prediction import Prediction
from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, copies, make_side, refuse, special, token_spans
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
        Stack("decoder", "decoder.stack", "output", config.decoder, ("decoder",), crosses=True),
    ]


def output(run: Run[str, Prediction], text: str, options: ExplainConfig) -> list[tuple[int, TokenSpan]]:
    """The tokens of a translation: the target given, to its end, or what the search finds."""
    tokenizer = run.vocabulary.target
    if options.target is not None:
        refuse(run.reader.invalid_pairs([(text, options.target)]))
        return [*token_spans(tokenizer, check_text(options.target, "--target")), special(tokenizer, tokenizer.eos_id)]
    refuse(run.reader.invalid_inputs([text]))
    found = run.predict(text, beam=options.beam_size, alpha=options.length_penalty, length=options.max_new_tokens)
    if not found.token_ids:
        raise DataError("input", "is empty, and becomes an empty output", "there is nothing to explain")
    pieces, at = list[tuple[int, TokenSpan]](), 0
    for number in found.token_ids:
        shown = tokenizer.token_text(number)
        start = -1 if number == tokenizer.eos_id else found.text.find(shown.strip(), at)
        at = at if start < 0 else start + len(shown.strip())
        pieces.append((number, TokenSpan(shown, max(start, 0), at if start >= 0 else 0)))
    return pieces


def read(run: Run[str, Prediction], text: str, options: ExplainConfig) -> ModelInput:
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("explain", "several models say something together", "explain one run")
    sides, model = run.vocabulary, run.members[0].model
    source = [*token_spans(sides.source, text), special(sides.source, sides.source.eos_id)]
    target = [special(sides.target, sides.target.bos_id), *output(run, text, options)]
    encoded, written = make_side("source", "encoder.embedder", source), make_side("output", "decoder.embedder", target[:-1])

    def say(at: Tensor) -> Tensor:
        tokens = copies(encoded.tokens, at)
        state = model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool))
        y, _ = model(copies(written.tokens, at), state)
        found: Tensor = model.head(y[torch.arange(len(at)), at], state[1])
        return found

    tokens = [number for number, _ in target[1:]]
    whole, places, show = sides.target.decode(tokens), [piece for _, piece in target[1:]], sides.target.token_text
    return ModelInput(model, [encoded, written], say, places, tokens, show, written=whole, stacks=stacks(run))


def readout(run: Run[str, Prediction], reading: ModelInput) -> Readout:
    """What each position of the output predicts: the token after it."""
    model = run.members[0].model

    def head(y: Tensor) -> Tensor:
        source = torch.tensor([reading.sides[0].tokens], device=y.device)
        _, seen = model.encode(source, torch.ones_like(source, dtype=torch.bool))
        # heads that copy look at the source for each position as for a row of its own
        found: Tensor = model.head(y, select(seen, torch.zeros(len(y), dtype=torch.long, device=y.device)))
        return found

    tokens = reading.sides[-1].tokens
    following = [*tokens[1:], reading.choices[-1] if reading.choices else None]
    return Readout("decoder.stack", head, list(range(len(tokens))), following)


def surprisal(run: Run[str, Prediction], text: str, options: ExplainConfig) -> SurprisalResult:
    """Each token of a target: of the one given, or of what the run writes."""
    written = output(run, text, options)
    target = options.target
    if target is None:
        target = run.vocabulary.target.decode([number for number, _ in written])
        written = [*token_spans(run.vocabulary.target, target), special(run.vocabulary.target, run.vocabulary.target.eos_id)]
    found = run.score((text, target))
    pieces = [piece for _, piece in written]
    return SurprisalResult(pieces, -np.array(found.token_log_probs), "the source and the tokens before it")


EXPLAIN = Explain(
    read,
    stacks,
    tokenizers=lambda run: [run.vocabulary.source, run.vocabulary.target],
    surprisal=surprisal,
    readout=readout,
    output=output,
    stepwise=True,
    records=True,
)
