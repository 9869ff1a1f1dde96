"""Context policies: what a token may be predicted from when a text is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.corpus import Corpus
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

FULL = "full"  # the policy that gives every token its past, as far as a model reads: how, its run decides


class Context(NamedTuple):
    """What a token may be predicted from.

    reset: its own line. carry: all before it, by a state that is carried on (before each of up to 32 places where the text is
    cut to be read side by side, `warm` tokens are read that don't count). stride: a window of `window` tokens that moves by
    `stride`, so that each token has at least window - stride tokens before it, but at the start. Under the policy `full` it is
    the run that decides which of the three.
    """

    policy: str
    context_length: int
    stride: int = 0
    full: bool = False

    def __str__(self) -> str:
        before = "full/" if self.full else ""
        match self.policy:
            case "stride":
                return f"{before}stride:{self.stride}/{self.context_length}"
            case "carry":
                return f"{before}carry:warm-{self.warmup}"
        return "reset:line"

    @property
    def warmup(self) -> int:
        """Tokens that are read, not counted, before each part of a carried text: more than any n-gram looks back."""
        return max(self.context_length, 64)


def parse_context(text: str, *, lines: bool, context_length: int, default: Context) -> Context:
    """`full`, which is the default, `stride`, `stride:32`, `carry` or `reset`, as the command line gives it."""
    if text == FULL:
        return default
    kind, colon, number = text.partition(":")
    if lines != (kind == "reset"):
        raise UsageError("--context", f"{text!r} does not fit data that is read as {'lines' if lines else 'running text'}")
    if kind == "stride":
        # the length first: Python refuses to read a number of thousands of digits
        if colon and not (number.isdecimal() and len(number) < 20 and 1 <= int(number) <= context_length):
            raise UsageError("--context", f"the stride must be from 1 to the window of {context_length}, not {number!r}")
        return Context("stride", context_length, int(number) if colon else context_length)
    if text == "carry":
        return Context("carry", context_length)
    if text == "reset":
        return default
    raise UsageError("--context", f"must be full, reset, carry, stride or stride:N, not {text!r}")


def check_positions(max_length: int | None, corpus: Corpus, context: Context) -> None:
    """Refuse, before the first token, a text that would pass the last position a model can read."""
    if max_length is None:
        return
    if corpus.starts is not None:
        lengths = np.diff(corpus.starts)
        line = int(lengths.argmax())
        if lengths[line] > max_length:
            raise DataError(
                "data",
                f"line {line + 1} of {corpus.name} has {lengths[line]} tokens, but the model reads at most {max_length}",
                f"shorten it, or train with data.context_length = {lengths[line]} or other positions",
            )
    elif context.policy == "carry" and len(corpus.tokens) + len(corpus.bos_ids) - 1 > max_length:
        raise UsageError("--context", f"'carry' runs on, but the model reads at most {max_length} positions", "use 'stride'")


def default_context(config: RunConfig) -> Context:
    """The policy `full`: lines by themselves; running text by a carried state, or by windows that overlap by half where the
    model was trained on windows and knows nothing else: attention, and positions that begin with each window.

    Measured (examples/positions.toml, one model for each kind of positions): carried on beyond its window, attention is worse
    than in windows with any kind, by 0.008 nats (rotary) to 3.1 (sinusoidal). Strides of a quarter or less cost twice as much
    and more, and gain nothing.
    """
    window, model = config.data.context_length, config.model
    if config.data.read_as == "lines":
        return Context("reset", window)
    within = config.preset.estimator.by_steps and (model.traits.attends or model.position_encoding != "none")
    if within and config.data.read_as == "windows":
        return Context("stride", window, -(-window // 2), full=True)
    return Context("carry", window, full=True)


def chosen_context(config: RunConfig, text: str | None) -> Context:
    """The policy that is asked for, as a run of these settings follows it; None: `full`."""
    data, default = config.data, default_context(config)
    return (
        default
        if text is None
        else parse_context(text, lines=data.read_as == "lines", context_length=data.context_length, default=default)
    )
