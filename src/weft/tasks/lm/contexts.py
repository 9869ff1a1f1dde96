"""Context policies: the context that each token is predicted from when a text is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.corpus import Corpus
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

FULL = "full"  # as much context as the model can use; the run determines how


class Context(NamedTuple):
    """The context that a token is predicted from.

    reset: its own line. carry: all preceding tokens, through a carried state (the text is divided into up to 32 parts that are
    read in parallel; `warmup` tokens before each part are read but do not count). stride: a window of `context_length` tokens
    that moves by `stride`, so that each token, except at the start, has at least context_length - stride tokens of context.
    With the policy `full`, the run determines which of the three is used.
    """

    policy: str
    context_length: int
    stride: int = 0
    full: bool = False

    def __str__(self) -> str:
        prefix = "full/" if self.full else ""
        match self.policy:
            case "stride":
                return f"{prefix}stride:{self.stride}/{self.context_length}"
            case "carry":
                return f"{prefix}carry:warm-{self.warmup}"
        return "reset:line"

    @property
    def warmup(self) -> int:
        """Tokens that are read but not counted before each part of a carried text: more than the order of any n-gram model."""
        return max(self.context_length, 64)


def parse_context(text: str, *, lines: bool, context_length: int, default: Context) -> Context:
    """Parse `full`, which is the default, `stride`, `stride:32`, `carry` or `reset`."""
    if text == FULL:
        return default
    policy, colon, number = text.partition(":")
    if lines != (policy == "reset"):
        raise UsageError("context", f"{text!r} is not possible for data that is read as {'lines' if lines else 'running text'}")
    if policy == "stride":
        # the number of digits first: Python does not parse thousands of digits
        if colon and not (number.isdecimal() and len(number) < 20 and 1 <= int(number) <= context_length):
            raise UsageError("context", f"stride must be from 1 to context_length ({context_length}), got {number!r}")
        return Context("stride", context_length, int(number) if colon else context_length)
    if text == "carry":
        return Context("carry", context_length)
    if text == "reset":
        return default
    raise UsageError("context", f"expected full, reset, carry, stride or stride:N, got {text!r}")


def check_positions(max_positions: int | None, corpus: Corpus, context: Context) -> None:
    """Refuse a text that needs more positions than the model has, before scoring starts."""
    if max_positions is None:
        return
    if corpus.starts is not None:
        lengths = np.diff(corpus.starts)
        line = int(lengths.argmax())
        if lengths[line] > max_positions:
            raise DataError(
                f"{corpus.name}:{line + 1}",
                f"{lengths[line]} tokens exceed the model's limit of {max_positions}",
                f"shorten it, or train with data.context_length = {lengths[line]} or another position_encoding",
            )
    elif context.policy == "carry" and len(corpus.tokens) + len(corpus.bos_ids) - 1 > max_positions:
        raise UsageError("context", f"'carry' needs more than the model's {max_positions} positions", "use 'stride'")


def default_context(config: RunConfig) -> Context:
    """The policy `full`: separate lines; running text with a carried state, or with windows that overlap by half if the model
    was trained on windows only: attention, and position encodings that start with each window.

    Measured (examples/positions.toml, one model per position encoding): beyond its context length, attention with a carried
    state is worse than in windows, by 0.008 nats (rotary) to 3.1 (sinusoidal). Strides up to a quarter cost more than twice
    as much and gain nothing.
    """
    context_length, model = config.data.context_length, config.model
    if config.data.read_as == "lines":
        return Context("reset", context_length)
    windows_only = config.preset.estimator.by_steps and (model.traits.attends or model.position_encoding != "none")
    if windows_only and config.data.read_as == "windows":
        return Context("stride", context_length, -(-context_length // 2), full=True)
    return Context("carry", context_length, full=True)


def resolve_context(config: RunConfig, text: str | None) -> Context:
    """Parse the context policy `text` for a run with this configuration; None is `full`."""
    data, default = config.data, default_context(config)
    return (
        default
        if text is None
        else parse_context(text, lines=data.read_as == "lines", context_length=data.context_length, default=default)
    )
