"""What a run reads of a text, and what may be asked of it: tokens with their places, and a way to read many copies at once.

Shapes: R copies, N tokens, K places where something is said, V choices there: words, labels or tags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.decode.predict_options import TRUNCATION
from weft.errors import DataError, UsageError, unknown_name
from weft.explain.explanation import TokenSpan
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.runs.run import AnyRun
from weft.tasks.spec import Explain
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

NAMED = "</s>"  # the one special token that may be asked for by its name


class InputSide(NamedTuple):
    """A sequence that the model reads."""

    name: str  # what it is to a person: text, source, output
    embedder: str  # the part that makes vectors of it
    config: str  # the embedding in that part
    tokens: list[int]
    pieces: list[TokenSpan]
    opening: int = 0  # how many of the first tokens are none of the text's, but what it comes after

    @property
    def of_text(self) -> list[bool]:
        """Of each token, whether it is of a text: what it comes after, <s> and </s> are none."""
        marks = (Tokenizer.bos_id, Tokenizer.eos_id)
        return [token not in marks and at >= self.opening for at, token in enumerate(self.tokens)]


class ModelInput(NamedTuple):
    """A text as network input, with the outputs."""

    model: nn.Module
    sides: list[InputSide]
    log_probs: Callable[[Tensor], Tensor]  # numbers of places (R,), one a copy -> log-probabilities there (R, V)
    places: list[TokenSpan]  # K output positions: words or masks; without a text, the next token
    choices: list[int] | None  # what is asked about at each place; None: what the run says
    show: Callable[[int], str]  # a choice by its number
    truncated: bool = False  # the text was too long for the model
    written: str = ""  # the whole output of a translation
    said: Callable[[], list[tuple[int, int]]] | None = None  # places, and what the run says there; None: the best of each place
    banned_tokens: Sequence[int] = ()  # choices that are never said
    stacks: Sequence[Stack] = ()  # of the model
    scores: Callable[[], Tensor] | None = None  # of each token as the next one, before the softmax (N, V)


class ExplainedOutput(NamedTuple):
    """The probability of one choice at one place."""

    place: int
    choice: int
    token: TokenSpan  # the choice as it is shown, where the place is


def token_spans(tokenizer: Tokenizer, text: str, before: int = 0) -> list[tuple[int, TokenSpan]]:
    """The tokens of a text, each as it is shown and with its place; `before` characters come before the text."""
    spans = tokenizer.offsets(text)
    numbers = tokenizer.encode(text).tolist()
    return [
        (
            number,
            TokenSpan(
                text[low:high] if number == tokenizer.unk_id else tokenizer.token_text(number), before + low, before + high
            ),
        )
        for number, (low, high) in zip(numbers, spans, strict=True)
    ]


def special(tokenizer: Tokenizer, number: int) -> tuple[int, TokenSpan]:
    return number, TokenSpan(tokenizer.token_text(number), 0, 0)


def make_side(name: str, embedder: str, found: Sequence[tuple[int, TokenSpan]]) -> InputSide:
    table = embedder if embedder == "embedding" else f"{embedder}.embedding"
    return InputSide(name, embedder, table, [number for number, _ in found], [piece for _, piece in found])


def wanted_tokens(tokenizer: Tokenizer, target: str) -> list[tuple[int, TokenSpan]]:
    """The tokens of what is asked about; </s> is the end."""
    text = target.removesuffix(NAMED)
    found = token_spans(tokenizer, check_text(text, "target"))
    if any(number == tokenizer.unk_id for number, _ in found):
        raise UsageError("target", f"{target!r} contains unknown tokens, which are never predicted")
    found += [special(tokenizer, tokenizer.eos_id)] if target.endswith(NAMED) else []
    if not found:
        raise UsageError("target", "is empty")
    return found


def refuse(problems: dict[int, str]) -> None:
    """Refuse a text that the run can't read; no view shows a part of one."""
    if problems:
        raise DataError("input", f"{problems[0].removesuffix(TRUNCATION)}")


def copies(tokens: Sequence[int], at: Tensor) -> Tensor:
    return torch.tensor([list(tokens)], device=at.device).expand(len(at), -1)


def label(run: AnyRun, target: str) -> int:
    """The number of a label or tag."""
    number: int | None = run.vocabulary.labels.index(target)
    if number is None:
        raise UsageError("target", *unknown_name("label", target, run.labels))
    return number


def network(run: AnyRun) -> nn.Module | None:
    """The network of a run; None where it counts."""
    return run.members[0].network


def explaining(run: AnyRun) -> Explain:
    """How a run's task lets its models be looked into."""
    if run.spec.explain is None:
        raise UsageError(run.directory.path, f"explanations are not available for task {run.config.task!r}")
    return run.spec.explain()


def stacks(run: AnyRun) -> Sequence[Stack]:
    """The stacks of a run that has a network."""
    return explaining(run).stacks(run)


def read(run: AnyRun, text: str, options: ExplainConfig) -> ModelInput:
    """The text as the run's network reads it."""
    return explaining(run).encode_input(run, check_text(text, "input"), options)


def _places(reading: ModelInput, position: int | None) -> list[int]:
    count = len(reading.places)
    if position is not None and position > count:
        raise UsageError("position", f"must be from 1 to {count}, got {position}")
    return list(range(count)) if position is None else [position - 1]


def _best(run: AnyRun, reading: ModelInput, wanted: list[int]) -> list[tuple[int, int]]:
    """Places, and the most probable choice at each."""
    said = reading.log_probs(torch.tensor(wanted, device=run.device))
    said[:, list(reading.banned_tokens)] = float("-inf")
    return list(zip(wanted, said.argmax(1).tolist(), strict=True))


@torch.no_grad()
def outputs_to_explain(run: AnyRun, reading: ModelInput, options: ExplainConfig) -> list[ExplainedOutput]:
    """What is asked: the choices given, or else what the run says."""
    wanted = _places(reading, options.position)
    if reading.choices is not None:
        pairs = [(place, reading.choices[place]) for place in wanted]
    elif reading.said is not None:
        pairs = [(place, choice) for place, choice in reading.said() if place in wanted]
    else:
        pairs = _best(run, reading, wanted)
    return [ExplainedOutput(at, choice, reading.places[at]._replace(text=reading.show(choice))) for at, choice in pairs]
