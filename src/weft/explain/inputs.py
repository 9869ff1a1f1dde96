"""What a run reads of a text, and what may be asked of it: tokens with their places, and a way to read many copies at once.

Shapes: R copies, N tokens, K places where something is said, V choices there: words, labels or tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.config import no_such
from weft.data.corpus import lines_of
from weft.data.tag_order import Sentences
from weft.data.text_order import laid_out
from weft.decode.predict_options import CUT
from weft.errors import DataError, UsageError
from weft.explain.options import ExplainOptions
from weft.explain.view import Piece
from weft.models.encoder import Text
from weft.models.tagger import Words
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer

NAMED = "</s>"  # the one special token that may be asked for by its name


class Side(NamedTuple):
    """A sequence that the model reads."""

    name: str  # what it is to a person: text, source, output
    front: str  # the part that makes vectors of it
    table: str  # the embedding in that part
    tokens: list[int]
    pieces: list[Piece]
    opening: int = 0  # how many of the first tokens are none of the text's, but what it comes after

    @property
    def of_text(self) -> list[bool]:
        """Of each token, whether it is of a text: what it comes after, <s> and </s> are none."""
        marks = (Tokenizer.begin, Tokenizer.end)
        return [token not in marks and at >= self.opening for at, token in enumerate(self.tokens)]


class Reading(NamedTuple):
    """A text as a network reads it, and what it says."""

    model: nn.Module
    sides: list[Side]
    say: Callable[[Tensor], Tensor]  # numbers of places (R,), one a copy -> log-probabilities there (R, V)
    places: list[Piece]  # K, where something is said: a word, a gap; without a text, what follows
    choices: list[int] | None  # what is asked about at each place; None: what the run says
    show: Callable[[int], str]  # a choice by its number
    cut: bool = False  # the text was longer than the model reads
    written: str = ""  # the whole output of a translation
    own: Callable[[], list[int]] | None = None  # what the run says at all places, where that is not the best choice of each


class Question(NamedTuple):
    """The probability of one choice at one place."""

    place: int
    choice: int
    piece: Piece  # the choice as it is shown, where the place is


def located(tokenizer: Tokenizer, text: str, before: int = 0) -> list[tuple[int, Piece]]:
    """The tokens of a text, each as it is shown and with its place; `before` characters come before the text."""
    spans = tokenizer.spans(text)
    numbers = tokenizer.encode(text).tolist()
    return [
        (number, Piece(text[low:high] if number == tokenizer.unk else tokenizer.show(number), before + low, before + high))
        for number, (low, high) in zip(numbers, spans, strict=True)
    ]


def special(tokenizer: Tokenizer, number: int) -> tuple[int, Piece]:
    return number, Piece(tokenizer.show(number), 0, 0)


def opening(run: Any) -> list[tuple[int, Piece]]:
    """The tokens that a text of a language model comes after; they have no place in it."""
    return [special(run.vocabulary, number) for number in run.reader.opening]


def _side(name: str, front: str, found: Sequence[tuple[int, Piece]]) -> Side:
    table = front if front == "embedding" else f"{front}.embedding"
    return Side(name, front, table, [number for number, _ in found], [piece for _, piece in found])


def wanted_tokens(tokenizer: Tokenizer, target: str) -> list[tuple[int, Piece]]:
    """The tokens of what is asked about; </s> is the end."""
    text = target.removesuffix(NAMED)
    found = located(tokenizer, clean(text, "--target"))
    if any(number == tokenizer.unk for number, _ in found):
        raise UsageError(f"--target {target!r}: holds what the tokenizer can't spell, and no output can be that")
    found += [special(tokenizer, tokenizer.end)] if target.endswith(NAMED) else []
    if not found:
        raise UsageError("--target: is empty; name what is asked about")
    return found


def refuse(faults: dict[int, str]) -> None:
    """Refuse a text that the run can't read; no view shows a part of one."""
    if faults:
        raise DataError(f"input: {faults[0].removesuffix(CUT)}")


def _copies(tokens: Sequence[int], at: Tensor) -> Tensor:
    return torch.tensor([list(tokens)], device=at.device).expand(len(at), -1)


def _language(run: Any, text: str, options: ExplainOptions) -> Reading:
    """The text, and after it the target but for its last token; asked about is each token of the target."""
    refuse(run.reader.faults([text]))
    tokenizer, model = run.vocabulary, run.model
    own = [*opening(run), *located(tokenizer, text)]
    wanted = [] if options.target is None else wanted_tokens(tokenizer, options.target)
    # what follows the text has no place in it
    side = _side("text", "embedding", [*own, *((number, Piece(piece.text, 0, 0)) for number, piece in wanted[:-1])])
    side = side._replace(opening=len(run.reader.opening))

    def say(at: Tensor) -> Tensor:
        y, _ = model(_copies(side.tokens, at))
        found: Tensor = model.head(y[torch.arange(len(at)), at + len(own) - 1])
        return found

    choices = [number for number, _ in wanted] or None
    return Reading(model, [side], say, [Piece("", 0, 0)] * max(1, len(wanted)), choices, tokenizer.show)


def written(run: Any, text: str, options: ExplainOptions) -> list[tuple[int, Piece]]:
    """The tokens of a translation: the target given, to its end, or what the search finds."""
    tokenizer = run.vocabulary.target
    if options.target is not None:
        refuse(run.reader.faults_of_pairs([(text, options.target)]))
        return [*located(tokenizer, clean(options.target, "--target")), special(tokenizer, tokenizer.end)]
    refuse(run.reader.faults([text]))
    found = run.predict(text, beam=options.beam, alpha=options.alpha, length=options.length)[0][0]
    if not found.tokens:
        raise DataError("input: is empty, and becomes an empty output; there is nothing to explain")
    pieces, at = list[tuple[int, Piece]](), 0
    for number in found.tokens:
        shown = tokenizer.show(number)
        start = -1 if number == tokenizer.end else found.text.find(shown.strip(), at)
        at = at if start < 0 else start + len(shown.strip())
        pieces.append((number, Piece(shown, max(start, 0), at if start >= 0 else 0)))
    return pieces


def _translation(run: Any, text: str, options: ExplainOptions) -> Reading:
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("explain: several models say something together; explain one run")
    sides, model = run.vocabulary, run.members[0].model
    source = [*located(sides.source, text), special(sides.source, sides.source.end)]
    target = [special(sides.target, sides.target.begin), *written(run, text, options)]
    read, write = _side("source", "encoder.front", source), _side("output", "decoder.front", target[:-1])

    def say(at: Tensor) -> Tensor:
        tokens = _copies(read.tokens, at)
        state = model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool))
        y, _ = model(_copies(write.tokens, at), state)
        found: Tensor = model.head(y[torch.arange(len(at)), at], state[1])
        return found

    tokens = [number for number, _ in target[1:]]
    whole = sides.target.decode(tokens)
    return Reading(model, [read, write], say, [piece for _, piece in target[1:]], tokens, sides.target.show, written=whole)


def texts_of(run: Any, text: str) -> list[str]:
    parts = text.split("\t") if run.reader.columns > 1 else [text]
    if len(parts) != run.reader.columns:
        raise DataError(f"input: needs {run.reader.columns} texts, separated by tabs, and has {len(parts)}")
    return parts


def label(run: Any, target: str) -> int:
    """The number of a label or tag."""
    number: int | None = run.vocabulary.labels.index(target)
    if number is None:
        raise UsageError(f"--target: {no_such('label', target, run.labels)}")
    return number


def _classification(run: Any, text: str, options: ExplainOptions) -> Reading:
    tokenizer, model = run.vocabulary.tokenizer, run.model
    found, rows, before = list[tuple[int, Piece]](), list[np.ndarray](), 0
    for part in texts_of(run, text):
        own = [*located(tokenizer, part, before), special(tokenizer, tokenizer.end)]
        rows.append(np.arange(len(found), len(found) + len(own)))
        found, before = found + own, before + len(part) + 1
    # numbers of tokens are laid out instead of tokens: so it is known which of them were cut
    order, keep, segments = laid_out([rows], longest=run.settings.data.longest)
    kept = [special(tokenizer, tokenizer.begin), *(found[at] for at in order[0, 1:].tolist())]
    side = _side("text", "encoder.front", kept)

    def say(at: Tensor) -> Tensor:
        each = None if segments is None else segments.to(at.device).expand(len(at), -1)
        read = Text(_copies(side.tokens, at), keep.to(at.device).expand(len(at), -1), each)
        said: Tensor = model.head.log_probs(model(read))
        return said

    choices = None if options.target is None else [label(run, options.target)]
    return Reading(model, [side], say, [Piece("", 0, 0)], choices, lambda at: run.labels[at], len(kept) <= len(found))


def _tagging(run: Any, text: str, options: ExplainOptions) -> Reading:
    tokenizer, model, device = run.vocabulary.tokenizer, run.model, run.device
    refuse(run.reader.faults([text]))
    places = [Piece(found[0], found.start(), found.end()) for found in re.finditer(r"\S+", text)]
    if not places:
        raise DataError("input: has no words, and nothing to tag")
    words = [place.text for place in places]
    letters = None if run.vocabulary.letters is None else lines_of(run.vocabulary.letters, words)
    edges, none = np.array([0, len(words)]), np.zeros(len(words), np.int64)
    batch = Sentences(lines_of(tokenizer, words), letters, edges, none).batch(np.array([0]))
    found = [one for place in places for one in located(tokenizer, place.text, place.start)]
    side = _side("text", "encoder.front", [special(tokenizer, tokenizer.begin), *found, special(tokenizer, tokenizer.end)])

    def say(at: Tensor) -> Tensor:
        parts: list[Any] = [part if part is None else part.to(device).expand(len(at), *part.shape[1:]) for part in batch[:-1]]
        read = Words(*parts)
        shares = model.head.marginals(model(read), read.real)[torch.arange(len(at)), at]
        said: Tensor = shares.clamp(min=torch.finfo(shares.dtype).tiny).log()
        return said

    def own() -> list[int]:
        return [label(run, tag) for tag in run.predict([words])[0].tags]  # a chain's best tags are not the best of each word

    choices = None if options.target is None else [label(run, options.target)] * len(places)
    return Reading(model, [side], say, places, choices, lambda at: run.labels[at], own=own)


def _masking(run: Any, text: str, options: ExplainOptions) -> Reading:
    tokenizer, model, before = run.vocabulary, run.model, 0
    found, places = [special(tokenizer, tokenizer.begin)], list[Piece]()
    for gap in run.reader.gaps.finditer(text):
        found += located(tokenizer, text[before : gap.start()], before)
        places.append(Piece("[MASK]", gap.start(), gap.end()))
        found.append((tokenizer.size, places[-1]))
        before = gap.end()
    found += [*located(tokenizer, text[before:], before), special(tokenizer, tokenizer.end)]
    side = _side("text", "encoder.front", found)
    if fault := run.reader.fault(side.tokens):
        raise DataError(f"input: {fault}")
    gaps = torch.tensor([at for at, token in enumerate(side.tokens) if token == tokenizer.size])

    def say(at: Tensor) -> Tensor:
        tokens = _copies(side.tokens, at)
        y = model(Text(tokens, torch.ones_like(tokens, dtype=torch.bool)))
        said: Tensor = model.log_probs(y[torch.arange(len(at)), gaps.to(at.device)[at]])[:, : tokenizer.size]
        return said

    choices = None
    if options.target is not None:
        wanted = wanted_tokens(tokenizer, options.target)
        if len(wanted) > 1:
            raise UsageError(f"--target {options.target!r}: is {len(wanted)} tokens, but a gap is one")
        choices = [wanted[0][0]] * len(places)
    return Reading(model, [side], say, places, choices, tokenizer.show)


def _answering(run: Any, text: str, options: ExplainOptions) -> Reading:
    """A question and a passage, asked where the answer starts and where it ends: a choice is a token."""
    tokenizer, model, longest = run.vocabulary, run.model, run.settings.data.longest
    parts = text.split("\t")
    if len(parts) != 2:
        raise DataError(f"input: needs a question and a passage, separated by a tab, and has {len(parts)}")
    before = len(parts[0]) + 1  # characters
    asked, passage = (located(tokenizer, part, at) for part, at in zip(parts, (0, before), strict=True))
    if not (asked and passage):
        raise DataError(f"input: has an empty {'passage' if asked else 'question'}")
    end = special(tokenizer, tokenizer.end)
    side = _side("text", "encoder.front", [special(tokenizer, tokenizer.begin), *asked, end, *passage, end])
    if len(side.tokens) > longest:
        raise DataError(f"input: has {len(side.tokens):,} tokens, but {run.folder.path} reads {longest} at once; shorten it")
    second = torch.arange(len(side.tokens)) >= len(asked) + 2

    def say(at: Tensor) -> Tensor:
        tokens = _copies(side.tokens, at)
        segments = second.to(at.device).long().expand(len(at), -1)
        scores = model(Text(tokens, torch.ones_like(tokens, dtype=torch.bool), segments))
        said: Tensor = scores.log_softmax(1)[torch.arange(len(at)), :, at]
        return said

    def ends(start: int, stop: int) -> list[int]:
        """The first and last token of a part of the passage, by characters."""
        places = [(at, piece) for at, piece in enumerate(side.pieces) if second[at]]
        inside = [at for at, piece in places if piece.stop > before + start and piece.start < before + stop]
        return [inside[0], inside[-1]] if inside else []

    def own() -> list[int]:
        answer = run.predict((parts[0], parts[1]))[0]
        return [0, 0] if answer.start is None else ends(answer.start, answer.stop)  # <s> is no answer

    choices = None
    if options.target is not None:
        start = parts[1].find(options.target)
        choices = ends(start, start + len(options.target)) if start >= 0 else []
        if not choices:
            raise UsageError(f"--target {options.target!r}: does not stand in the passage, and no answer can be that")
    places = [Piece("start", 0, 0), Piece("end", 0, 0)]
    return Reading(model, [side], say, places, choices, lambda at: side.pieces[at].text, own=own)


READERS: dict[str, Callable[[Any, str, ExplainOptions], Reading]] = {
    "lm": _language,
    "translate": _translation,
    "classify": _classification,
    "tag": _tagging,
    "masked-lm": _masking,
    "span": _answering,
}


def network(run: Any) -> nn.Module | None:
    """The network of a run; None where it counts."""
    found: nn.Module | None = run.members[0].network
    return found


def read(run: Any, text: str, options: ExplainOptions) -> Reading:
    """The text as the run's network reads it."""
    return READERS[run.settings.task](run, clean(text, "input"), options)


def _places(reading: Reading, position: int | None) -> list[int]:
    count = len(reading.places)
    if position is not None and position > count:
        raise UsageError(f"--position: must be from 1 to {count}, not {position}")
    return list(range(count)) if position is None else [position - 1]


def never_said(run: Any) -> list[int]:
    """Tokens that no continuation of a text, and no filling of a gap, ever is."""
    if run.settings.task not in ("lm", "masked-lm"):
        return []
    endless = run.settings.task == "masked-lm" or run.reader.end is None
    return [Tokenizer.unk, Tokenizer.begin] + ([Tokenizer.end] if endless else [])


def _best(run: Any, reading: Reading, wanted: list[int]) -> list[tuple[int, int]]:
    """Places, and the most probable choice at each; of several labels, all that are said."""
    said = reading.say(torch.tensor(wanted, device=run.device))
    said[:, never_said(run)] = float("-inf")
    several = run.settings.task == "classify" and run.settings.data.multi
    more = (said[0].exp() > 0.5).nonzero()[:, 0].tolist() if several else []
    return [(0, label) for label in more] or list(zip(wanted, said.argmax(1).tolist(), strict=True))


@torch.no_grad()
def questions(run: Any, reading: Reading, options: ExplainOptions) -> list[Question]:
    """What is asked: the choices given, or else what the run says."""
    wanted = _places(reading, options.position)
    choices = reading.own() if reading.choices is None and reading.own is not None else reading.choices
    pairs = _best(run, reading, wanted) if choices is None else [(place, choices[place]) for place in wanted]
    return [Question(at, choice, reading.places[at]._replace(text=reading.show(choice))) for at, choice in pairs]
