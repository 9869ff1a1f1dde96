"""What each layer of a run says of each word of a text.

Shapes: T tokens, N words, D width, which may differ from layer to layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.data.input_records import InputFile
from weft.errors import DataError, UsageError
from weft.explain.hooks import Activation, record_activations
from weft.explain.inputs import InputSide, ModelInput, explaining, network, read, stacks
from weft.explain.options import ExplainConfig
from weft.explain.stacks import layers_of
from weft.runs.eval_data import Files, as_paths, eval_source, first_split
from weft.runs.run import AnyRun
from weft.text.reading import check_text, read_lines

MAX_WORDS = 20_000  # words that are read by default
WORD = re.compile("\\w+(?:['\u2019]\\w+)*|[^\\w\\s]")  # words with the apostrophes inside, and marks by themselves
WHOLE = ("char", "byte", "word", "whitespace")  # kinds of tokens that are looked at as they are; others are pieces of words


class Stage(NamedTuple):
    """A place in a stack where every position has a vector."""

    label: str
    name: str  # of the part that gives it


class Track(NamedTuple):
    """The stages of one sequence that the model reads, lowest first."""

    side: str  # text, source, output
    stages: list[Stage]
    backwards: bool  # the stack reads from the end


class Unit(NamedTuple):
    """A word, or a token where tokens are looked at."""

    text: str
    start: int  # in characters
    tokens: list[int]


class Line(NamedTuple):
    """A text that is read, and the words of each of its sides."""

    text: str
    reading: ModelInput
    units: list[list[Unit]]


# ---- where vectors stand


def _stages(model: nn.Module, stack: str, layers: int, prefix: str) -> list[Stage]:
    """What goes into a stack, what its layers give, and what leaves it on top."""
    names = [name for name in layers_of(model) if name.startswith(f"{stack}.") and ".char_encoder." not in name]
    groups = {above: list(own) for above, own in groupby(names, lambda name: name.rpartition(".")[0])}
    above = max(groups, key=len)  # around recurrent layers of a decoder stands another stack, that of its attention
    own = groups[above]
    step = len(own) // layers  # the mixer, and the feed-forward layer after it
    found = [Stage(f"{prefix or ''}input", f"{stack}.input_proj")]
    found += [Stage(f"{prefix or 'layer '}{at}", name) for at, name in enumerate(own[step - 1 :: step], 1)]
    outlet = model.get_submodule(f"{stack}.final_norm")
    if not isinstance(outlet, nn.Identity | nn.Dropout) or above != f"{stack}.layers":
        found.append(Stage(f"{prefix}top", f"{stack}.final_norm"))
    return found


def tracks(run: AnyRun) -> list[Track]:
    """Every sequence that a run reads, with the places where vectors of it stand."""
    model = network(run)
    if model is None:
        raise UsageError("vectors", f"{run.config.arch} has no contextual word vectors ({run.directory.path})")
    own = stacks(run)
    prefixes = [f"{stack.part} " if len(own) > 1 else "" for stack in own]
    return [
        Track(stack.side, _stages(model, stack.name, stack.config.num_layers, prefix), stack.backwards)
        for stack, prefix in zip(own, prefixes, strict=True)
    ]


# ---- what is read


def _texts(run: AnyRun, path: Path) -> Iterator[str]:
    """The texts of a file, read as those of training are, or its lines."""
    table = run.config.data
    lines = partial(read_lines, path, table.encoding)
    opened = run.spec.data.open_input(table, InputFile(path, lines, run.labels))
    if opened is None:
        yield from lines()
        return
    for entry in opened.entries:
        if entry.fault is not None:
            raise DataError("", f"{entry.where}: {entry.fault}" if entry.where else entry.fault)
        yield entry.text or ""


def _lines(run: AnyRun, data: Files | None) -> Iterator[tuple[str, str | None]]:
    """Texts, and of pairs their targets: of files, or of the run's own validation or test data."""
    config = run.config
    if data is not None and not explaining(run).reads_records:
        for path in as_paths(data):
            yield from ((text, None) for text in _texts(run, path))
        return
    if data is None:
        source = first_split(run.directory, config, ("valid", "test"))[1]
    else:
        source = eval_source(run.directory, config, data)
    yield from run.spec.data.input_output_pairs(source)


def _pieces(run: AnyRun, text: str) -> Iterator[str]:
    """A text in pieces that the model can read, broken at spaces where there are any."""
    explain = explaining(run)
    room, tokenizer = explain.max_tokens(run), explain.tokenizers(run)[0]
    while room is not None:
        spans = tokenizer.offsets(text)
        if len(spans) <= room:
            break
        cut = spans[room][0]
        space = text.rfind(" ", 1, cut)
        cut = space if space > 0 else max(1, cut)
        yield text[:cut]
        text = text[cut:]
    yield text


def _read(run: AnyRun, text: str, target: str | None) -> ModelInput:
    """A text as the network reads it; nothing in it is hidden."""
    unmasked = explaining(run).encode_unmasked
    if unmasked is None:
        return read(run, text, ExplainConfig(target=target))
    return unmasked(run, check_text(text, "input"))


def units(side: InputSide, text: str, *, words: bool) -> list[Unit]:
    """The words of a text with their tokens; or its tokens."""
    places = [(at, piece) for at, piece in enumerate(side.pieces) if piece.end > piece.start]
    if not words:
        return [Unit(piece.text, piece.start, [at]) for at, piece in places]
    found = []
    for match in WORD.finditer(text):
        own = [at for at, piece in places if piece.start < match.end() and piece.end > match.start()]
        if own:
            found.append(Unit(match[0], match.start(), own))
    return found


def in_words(runs: Sequence[AnyRun]) -> bool:
    """Whether words are looked at: where tokens are pieces of them, or where two runs have tokens of their own."""
    kinds = {tokenizer.type for run in runs for tokenizer in explaining(run).tokenizers(run)}
    hashes = {tuple(tokenizer.hash for tokenizer in explaining(run).tokenizers(run)) for run in runs}
    return not kinds <= set(WHOLE) or len(hashes) > 1


class Sample(NamedTuple):
    """What is looked at."""

    lines: list[list[Line]]  # of each text, how each run reads it
    words: bool  # words, not tokens
    left_out: int  # texts that a run can't read, and blank ones
    repeated: int = 0  # texts that were there before, where each is read once

    @property
    def unit(self) -> str:
        return "words" if self.words else "tokens"


def _line(run: AnyRun, text: str, target: str | None, *, words: bool) -> Line:
    reading = _read(run, text, target)
    texts = [text, target or ""][: len(reading.sides)]
    return Line(text, reading, [units(side, own, words=words) for side, own in zip(reading.sides, texts, strict=True)])


def sample(runs: Sequence[AnyRun], data: Files | None, *, max_words: int = MAX_WORDS, distinct: bool = False) -> Sample:
    """Lines of the data, as the first run reads it, until there are `most` words of their first sides; every run reads each.
    `distinct`: a line that occurs again is read once."""
    words, found, seen, left_out, problem = in_words(runs), list[list[Line]](), 0, 0, "it is blank"
    before, repeated = set[tuple[str, str | None]](), 0
    for whole, target in _lines(runs[0], data):
        texts: Iterable[str] = [whole] if whole.strip() else []
        for run in runs:
            texts = [piece for text in texts for piece in _pieces(run, text) if piece.strip()]
        left_out += not texts
        for text in texts:
            if distinct and (text, target) in before:
                repeated += 1
                continue
            before.add((text, target))
            try:
                lines = [_line(run, text, target, words=words) for run in runs]
            except (DataError, UsageError) as error:  # too long, or empty on one side
                left_out, problem = left_out + 1, str(error)
                continue
            found.append(lines)
            seen += len(lines[0].units[0])
        if seen >= max_words:
            break
    if not seen:
        raise DataError("data", f"has no text that {' and '.join(str(run.directory.path) for run in runs)} can read: {problem}")
    return Sample(found, words, left_out, repeated)


# ---- vectors


@torch.no_grad()
def vectors(line: Line, tracks: Sequence[Track], device: torch.device) -> list[list[Tensor]]:
    """Of each side and each of its stages a vector for each word, the mean of its tokens': float64 (N, D)."""
    names = [stage.name for track in tracks for stage in track.stages]
    with record_activations(line.reading.model, names) as seen:
        line.reading.log_probs(torch.zeros(1, dtype=torch.long, device=device))
    found = []
    for side, (track, own) in enumerate(zip(tracks, line.units, strict=True)):
        count = len(line.reading.sides[side].tokens)
        fraction = torch.zeros(len(own), count, dtype=torch.float64)
        for row, unit in enumerate(own):
            fraction[row, unit.tokens] = 1 / len(unit.tokens)
        found.append([fraction @ _whole(seen, stage.name, track.backwards) for stage in track.stages])
    return found


def _whole(seen: Sequence[Activation], name: str, backwards: bool) -> Tensor:
    """(T, D) of a part that may have been called for one position after another."""
    outputs = [one.output if isinstance(one.output, Tensor) else one.output[0] for one in seen if one.name == name]
    y = torch.cat(outputs, dim=1)[0].double().cpu()
    return y.flip(0) if backwards else y
