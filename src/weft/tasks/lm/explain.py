"""Language models as they are explained: a text, and what comes after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError, UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import ModelInput, copies, make_side, refuse, special, token_spans, wanted_tokens
from weft.explain.logit_lens import Readout
from weft.explain.options import ExplainConfig
from weft.explain.sparse_attribution import SparseAttribution, refuse_gradients
from weft.explain.stacks import Stack
from weft.explain.surprisal import SurprisalResult
from weft.runs.eval_data import own_source_or_none
from weft.tasks.lm.predict import LanguageReader, never
from weft.tasks.spec import Explain
from weft.text.reading import check_text

if TYPE_CHECKING:
    from weft.runs.run import Run

STEPS = 8  # of a continuation, unless told
CONTEXT = 4  # tokens of a context that are counted for a network, which has no order


def _opening(run: Run[str, None]) -> list[tuple[int, TokenSpan]]:
    """The tokens that a text comes after; they have no place in it."""
    return [special(run.vocabulary, number) for number in run.reader.opening]


def stacks(run: Run[str, None]) -> list[Stack]:
    return [Stack("decoder", "stack", "text", run.config.model)]


def read(run: Run[str, None], text: str, options: ExplainConfig) -> ModelInput:
    """The text, and after it the target but for its last token; asked about is each token of the target."""
    refuse(run.reader.invalid_inputs([text]))
    tokenizer, model = run.vocabulary, run.model
    own = [*_opening(run), *token_spans(tokenizer, text)]
    wanted = [] if options.target is None else wanted_tokens(tokenizer, options.target)
    # what follows the text has no place in it
    side = make_side("text", "embedding", [*own, *((number, TokenSpan(piece.text, 0, 0)) for number, piece in wanted[:-1])])
    side = side._replace(opening=len(run.reader.opening))

    def say(at: Tensor) -> Tensor:
        y, _ = model(copies(side.tokens, at))
        found: Tensor = model.head(y[torch.arange(len(at)), at + len(own) - 1])
        return found

    def scores() -> Tensor:
        y, _ = model(torch.tensor([side.tokens], device=run.device))
        found: Tensor = model.head.scores(y[0])
        return found

    choices, places = [number for number, _ in wanted] or None, [TokenSpan("", 0, 0)] * max(1, len(wanted))
    return ModelInput(
        model, [side], say, places, choices, tokenizer.token_text, banned_tokens=never(run), stacks=stacks(run), scores=scores
    )


def readout(run: Run[str, None], reading: ModelInput) -> Readout:
    """What each position predicts: the token after it."""
    tokens = reading.sides[-1].tokens
    following = [*tokens[1:], reading.choices[-1] if reading.choices else None]
    return Readout("stack", run.model.head, list(range(len(tokens))), following)


def attribute(run: Run[str, None], text: str, options: ExplainConfig) -> SparseAttribution:
    """Next tokens of a model that counts."""
    refuse_gradients(run, options.method, ("occlusion",))
    if options.baseline not in (None, "unk"):
        raise UsageError(f"--baseline {options.baseline}", "n-grams have no vectors", "a token can only become unk")
    tokenizer, model = run.vocabulary, run.model
    own = [*_opening(run), *token_spans(tokenizer, text)]
    if options.target is None:
        said = model.start(torch.tensor([[number for number, _ in own]]))[0]
        said[:, never(run)] = float("-inf")
        wanted = [special(tokenizer, int(said.argmax()))]
    else:
        wanted = wanted_tokens(tokenizer, options.target)
    tokens = [number for number, _ in [*own, *wanted]]
    rows = torch.tensor([tokens] * len(tokens))
    for at in range(len(run.reader.opening), len(tokens) - 1):
        if tokens[at] not in (tokenizer.bos_id, tokenizer.eos_id):
            rows[at + 1, at] = tokenizer.unk_id  # row 0 is the text itself
    places = list(range(len(wanted))) if options.position is None else [options.position - 1]
    if places[0] >= len(wanted):
        raise UsageError("--position", f"must be from 1 to {len(wanted)}, not {options.position}")
    scores = model.score(rows).double().numpy()[:, len(own) - 1 :]
    values = (scores[:1] - scores[1:]).T[places]
    for row, place in zip(values, places, strict=True):
        row[len(own) + place :] = 0.0  # what comes later did nothing
    after = [(number, TokenSpan(piece.text, 0, 0)) for number, piece in wanted]
    pieces = [piece for _, piece in [*own, *after]][:-1]
    outputs = [after[place][1] for place in places]
    return SparseAttribution(pieces, outputs, values, scores[0][places], "occlusion", "<unk> in its place")


def surprisal(run: Run[str, None], text: str, options: ExplainConfig) -> SurprisalResult:
    """Any model that steps, n-grams among them."""
    ends = [special(run.vocabulary, run.reader.end)] if run.reader.end is not None else []
    pieces = [piece for _, piece in [*token_spans(run.vocabulary, text), *ends]]
    if not pieces:  # a tokenizer of words has no token for spaces alone
        raise DataError("input", "is empty", "there is nothing to be surprised at")
    found = run.score(text)
    return SurprisalResult(pieces, -np.array(found.token_log_probs), "the tokens before it")


def output(run: Run[str, None], text: str, options: ExplainConfig) -> list[tuple[int, TokenSpan]]:
    """The target given, or what the model itself would write, the best token each time."""
    tokenizer = run.vocabulary
    if options.target is None:
        written = run.generate(text, length=options.max_new_tokens or STEPS, temperature=0.0).token_ids
        return [special(tokenizer, number) for number in written]
    ends = [] if run.reader.end is None else [special(tokenizer, tokenizer.eos_id)]
    return [*token_spans(tokenizer, check_text(options.target, "--target")), *ends]


def context(run: Run[str, None]) -> int:
    """How many tokens of a context are counted: as many as an n-gram model sees."""
    return CONTEXT if run.network is not None else int(run.model.order) - 1


# ---- texts of its own


def _some(texts: Iterator[str], characters: int, *, whole: bool) -> list[str]:
    """Texts of about so many characters in all; running text as one."""
    left, held = characters, list[str]()
    for text in texts:
        held.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return ["".join(held)] if whole else [text for text in held if text]


def _fitting(run: Run[str, None], text: str) -> str:
    """As much of a text as the model reads."""
    if run.model.max_positions is None:
        return text
    spans = run.vocabulary.offsets(text)[: run.model.max_positions - 1]
    return text[: spans[-1][1]] if spans else ""


def sample(run: Run[str, None], characters: int) -> tuple[str, list[str]]:
    """The split of its own data that is there, and texts of it; none where all are gone."""
    for split in ("valid", "test", "train"):
        if (source := own_source_or_none(run.directory, run.config, split)) is not None:
            found = _some(source.texts(), characters, whole=not run.reader.lines)
            return split, [_fitting(run, text) for text in found]
    return "", []


def room(run: Run[str, None]) -> int:
    """How many tokens of a text are read at once."""
    return int(run.config.data.context_length) - len(run.reader.opening)


def _line(run: Run[str, None]) -> bool:
    reader: LanguageReader = run.reader
    return reader.lines


EXPLAIN = Explain(
    read,
    stacks,
    attribute=attribute,
    surprisal=surprisal,
    readout=readout,
    output=output,
    context=context,
    sample=sample,
    room=room,
    line=_line,
    stepwise=True,
)
