"""Contextual word vectors: the hidden states of a run in each layer for each word of a text.

Shapes: T tokens, N words, D vector size, which may differ between layers.
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
from weft.explain.inputs import InputSide, ModelInput, explain_spec, network, read, stacks
from weft.explain.options import ExplainConfig
from weft.explain.stacks import layers_of
from weft.runs.eval_data import Files, as_paths, eval_source, first_split
from weft.runs.run import AnyRun
from weft.text.reading import check_text, read_lines

MAX_WORDS = 20_000  # words read by default
WORD = re.compile("\\w+(?:['\u2019]\\w+)*|[^\\w\\s]")  # a word, with inner apostrophes, or one punctuation mark
# tokenizers whose tokens are analyzed directly; the tokens of others are subwords, which are averaged over words
TOKEN_LEVEL_TOKENIZERS = ("char", "byte", "word", "whitespace")


# ---- stages: where the vectors come from


class Stage(NamedTuple):
    """A module of a stack whose output has a vector for each position."""

    label: str
    module: str


class SequenceStages(NamedTuple):
    """The stages of the stack that reads one side, lowest first."""

    side: str  # text, source or output
    stages: list[Stage]
    backwards: bool  # the stack reads the sequence from its end


def _stages(model: nn.Module, stack: str, num_layers: int, prefix: str) -> list[Stage]:
    """The input of a stack, its layers, and its final norm if that changes the output of the last layer."""
    names = [name for name in layers_of(model) if name.startswith(f"{stack}.") and ".char_encoder." not in name]
    groups = {parent: list(group) for parent, group in groupby(names, lambda name: name.rpartition(".")[0])}
    parent = max(groups, key=len)  # the layers of a recurrent decoder may be in an inner stack
    layers = groups[parent]
    sublayers = len(layers) // num_layers  # per layer: the mixer, and attention or feed-forward after it
    stages = [Stage(f"{prefix}input", f"{stack}.input_proj")]
    stages += [Stage(f"{prefix or 'layer '}{i}", name) for i, name in enumerate(layers[sublayers - 1 :: sublayers], 1)]
    final_norm = model.get_submodule(f"{stack}.final_norm")
    if not isinstance(final_norm, nn.Identity | nn.Dropout) or parent != f"{stack}.layers":
        stages.append(Stage(f"{prefix}top", f"{stack}.final_norm"))
    return stages


def sequence_stages(run: AnyRun) -> list[SequenceStages]:
    """The stages of each side that a run reads; raises UsageError if the run has no vectors."""
    model = network(run)
    if model is None:
        raise UsageError("vectors", f"{run.config.arch} has no contextual word vectors ({run.directory.path})")
    run_stacks = stacks(run)
    prefixes = [f"{stack.part} " if len(run_stacks) > 1 else "" for stack in run_stacks]
    return [
        SequenceStages(stack.side, _stages(model, stack.name, stack.config.num_layers, prefix), stack.backwards)
        for stack, prefix in zip(run_stacks, prefixes, strict=True)
    ]


# ---- texts


def _file_texts(run: AnyRun, path: Path) -> Iterator[str]:
    """The texts of a file in the format of the training data, or its lines."""
    config = run.config.data
    lines = partial(read_lines, path, config.encoding)
    opened = run.spec.data.open_input(config, InputFile(path, lines, run.labels))
    if opened is None:
        yield from lines()
        return
    for entry in opened.entries:
        if entry.problem is not None:
            raise DataError("", f"{entry.where}: {entry.problem}" if entry.where else entry.problem)
        yield entry.text or ""


def _texts(run: AnyRun, data: Files | None) -> Iterator[tuple[str, str | None]]:
    """Texts with their targets, if any: of files, or of the run's validation or test data."""
    config = run.config
    if data is not None and not explain_spec(run).reads_records:
        for path in as_paths(data):
            yield from ((text, None) for text in _file_texts(run, path))
        return
    if data is None:
        source = first_split(run.directory, config, ("valid", "test"))[1]
    else:
        source = eval_source(run.directory, config, data)
    yield from run.spec.data.input_output_pairs(source)


def _split_to_length(run: AnyRun, text: str) -> Iterator[str]:
    """A text in parts that are short enough for the model, split at spaces if possible."""
    explain = explain_spec(run)
    max_length, tokenizer = explain.max_tokens(run), explain.tokenizers(run)[0]
    while max_length is not None:
        offsets = tokenizer.offsets(text)
        if len(offsets) <= max_length:
            break
        end = offsets[max_length][0]
        space = text.rfind(" ", 1, end)
        end = space if space > 0 else max(1, end)
        yield text[:end]
        text = text[end:]
    yield text


# ---- units: words or tokens


class Unit(NamedTuple):
    """A word, or a token if tokens are analyzed."""

    text: str
    start: int  # character offset
    tokens: list[int]  # token positions


def split_units(side: InputSide, text: str, *, words: bool) -> list[Unit]:
    """The words of a text with the positions of their tokens, or its tokens."""
    tokens = [(position, token) for position, token in enumerate(side.spans) if token.end > token.start]
    if not words:
        return [Unit(token.text, token.start, [position]) for position, token in tokens]
    units = []
    for match in WORD.finditer(text):
        positions = [position for position, token in tokens if token.start < match.end() and token.end > match.start()]
        if positions:
            units.append(Unit(match[0], match.start(), positions))
    return units


def uses_words(runs: Sequence[AnyRun]) -> bool:
    """Whether units are words: if tokens are subwords, or if the tokenizers of the runs differ."""
    types = {tokenizer.type for run in runs for tokenizer in explain_spec(run).tokenizers(run)}
    hashes = {tuple(tokenizer.hash for tokenizer in explain_spec(run).tokenizers(run)) for run in runs}
    return not types <= set(TOKEN_LEVEL_TOKENIZERS) or len(hashes) > 1


class Example(NamedTuple):
    """A text as one run reads it."""

    text: str
    model_input: ModelInput
    units: list[list[Unit]]  # of each side


def _read_unmasked(run: AnyRun, text: str, target: str | None) -> ModelInput:
    unmasked = explain_spec(run).encode_unmasked
    if unmasked is None:
        return read(run, text, ExplainConfig(target=target))
    return unmasked(run, check_text(text, "input"))


def _example(run: AnyRun, text: str, target: str | None, *, words: bool) -> Example:
    model_input = _read_unmasked(run, text, target)
    texts = [text, target or ""][: len(model_input.sides)]
    units = [split_units(side, side_text, words=words) for side, side_text in zip(model_input.sides, texts, strict=True)]
    return Example(text, model_input, units)


class Sample(NamedTuple):
    """The texts to analyze."""

    examples: list[list[Example]]  # of each text, one per run
    words: bool  # units are words, not tokens
    left_out: int  # number of blank texts and of texts that a run cannot read
    repeated: int = 0  # number of duplicates that were skipped

    @property
    def unit(self) -> str:
        return "words" if self.words else "tokens"


def sample(runs: Sequence[AnyRun], data: Files | None, *, max_words: int = MAX_WORDS, distinct: bool = False) -> Sample:
    """Read texts until their first sides have `max_words` units, each text with every run.

    The first run decides how the data is read. With `distinct`, duplicates are skipped.
    """
    words, examples, num_units = uses_words(runs), list[list[Example]](), 0
    seen, repeated, left_out, problem = set[tuple[str, str | None]](), 0, 0, "it is blank"
    for full_text, target in _texts(runs[0], data):
        texts: Iterable[str] = [full_text] if full_text.strip() else []
        for run in runs:
            texts = [part for text in texts for part in _split_to_length(run, text) if part.strip()]
        left_out += not texts
        for text in texts:
            if distinct and (text, target) in seen:
                repeated += 1
                continue
            seen.add((text, target))
            try:
                by_run = [_example(run, text, target, words=words) for run in runs]
            except (DataError, UsageError) as error:  # too long, or empty on one side
                left_out, problem = left_out + 1, str(error)
                continue
            examples.append(by_run)
            num_units += len(by_run[0].units[0])
        if num_units >= max_words:
            break
    if not num_units:
        raise DataError("data", f"has no text that {' and '.join(str(run.directory.path) for run in runs)} can read: {problem}")
    return Sample(examples, words, left_out, repeated)


# ---- vectors


@torch.no_grad()
def word_vectors(example: Example, sequences: Sequence[SequenceStages], device: torch.device) -> list[list[Tensor]]:
    """For each side and stage, float64 (N, D): the vector of each unit, the mean over its tokens."""
    model_input = example.model_input
    modules = [stage.module for sequence in sequences for stage in sequence.stages]
    with record_activations(model_input.model, modules) as activations:
        model_input.log_probs(torch.zeros(1, dtype=torch.long, device=device))
    vectors = []
    for sequence, units, side in zip(sequences, example.units, model_input.sides, strict=True):
        averaging = torch.zeros(len(units), len(side.tokens), dtype=torch.float64)  # (N, T)
        for row, unit in enumerate(units):
            averaging[row, unit.tokens] = 1 / len(unit.tokens)
        outputs = [_output(activations, stage.module, backwards=sequence.backwards) for stage in sequence.stages]
        vectors.append([averaging @ output for output in outputs])
    return vectors


def _output(activations: Sequence[Activation], module: str, *, backwards: bool) -> Tensor:
    """The output (T, D) of a module, which a decoder may call once per position."""
    outputs = [call.output for call in activations if call.name == module]
    outputs = [output if isinstance(output, Tensor) else output[0] for output in outputs]
    y = torch.cat(outputs, dim=1)[0].double().cpu()
    return y.flip(0) if backwards else y
