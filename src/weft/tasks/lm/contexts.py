"""Context policies: what a token may be predicted from when a text is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.corpus import Corpus
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.runs.settings import Settings

FULL = "full"  # the policy that gives every token its past, as far as a model reads: how, its run decides


class Context(NamedTuple):
    """What a token may be predicted from.

    reset: its own line. carry: all before it, by a state that is carried on (before each of up to 32 places where the text is
    cut to be read side by side, `warm` tokens are read that don't count). stride: a window of `window` tokens that moves by
    `stride`, so that each token has at least window - stride tokens before it, but at the start. Under the policy `full` it is
    the run that decides which of the three.
    """

    kind: str
    window: int
    stride: int = 0
    full: bool = False

    def __str__(self) -> str:
        before = "full/" if self.full else ""
        match self.kind:
            case "stride":
                return f"{before}stride:{self.stride}/{self.window}"
            case "carry":
                return f"{before}carry:warm-{self.warm}"
        return "reset:line"

    @property
    def warm(self) -> int:
        """Tokens that are read, not counted, before each part of a carried text: more than any n-gram looks back."""
        return max(self.window, 64)


def parse_context(text: str, *, lines: bool, window: int, default: Context) -> Context:
    """`full`, which is the default, `stride`, `stride:32`, `carry` or `reset`, as the command line gives it."""
    if text == FULL:
        return default
    kind, colon, number = text.partition(":")
    if lines != (kind == "reset"):
        raise UsageError(f"--context: {text!r} does not fit data that is read as {'lines' if lines else 'running text'}")
    if kind == "stride":
        # the length first: Python refuses to read a number of thousands of digits
        if colon and not (number.isdecimal() and len(number) < 20 and 1 <= int(number) <= window):
            raise UsageError(f"--context: the stride must be from 1 to the window of {window}, not {number!r}")
        return Context("stride", window, int(number) if colon else window)
    if text == "carry":
        return Context("carry", window)
    if text == "reset":
        return default
    raise UsageError(f"--context: must be full, reset, carry, stride or stride:N, not {text!r}")


def check_positions(longest: int | None, corpus: Corpus, context: Context) -> None:
    """Refuse, before the first token, a text that would pass the last position a model can read."""
    if longest is None:
        return
    if corpus.starts is not None:
        lengths = np.diff(corpus.starts)
        line = int(lengths.argmax())
        if lengths[line] > longest:
            raise DataError(
                f"data: line {line + 1} of {corpus.name} has {lengths[line]} tokens, but the model reads at most {longest}; "
                f"shorten it, or train with data.window = {lengths[line]} or other positions"
            )
    elif context.kind == "carry" and len(corpus.tokens) + len(corpus.opening) - 1 > longest:
        raise UsageError(f"--context: 'carry' runs on, but the model reads at most {longest} positions; use 'stride'")


def default_context(settings: Settings) -> Context:
    """The policy `full`: lines by themselves; running text by a carried state, or by windows that overlap by half where the
    model was trained on windows and knows nothing else: attention, and positions that begin with each window.

    Measured (examples/positions.toml, one model for each kind of positions): carried on beyond its window, attention is worse
    than in windows with any kind, by 0.008 nats (rotary) to 3.1 (sinusoidal). Strides of a quarter or less cost twice as much
    and more, and gain nothing.
    """
    window, model = settings.data.window, settings.model
    if settings.data.read == "lines":
        return Context("reset", window)
    within = settings.preset.estimator.by_steps and (model.traits.attends or model.positions != "none")
    if within and settings.data.read == "windows":
        return Context("stride", window, -(-window // 2), full=True)
    return Context("carry", window, full=True)


def chosen_context(settings: Settings, text: str | None) -> Context:
    """The policy that is asked for, as a run of these settings follows it; None: `full`."""
    data, default = settings.data, default_context(settings)
    return default if text is None else parse_context(text, lines=data.read == "lines", window=data.window, default=default)
