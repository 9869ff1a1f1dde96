"""The interface that a model offers for decoding. Search and sampling use nothing else.

Shapes: B batch size, T sequence length, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

S = TypeVar("S")
Step = Callable[[Tensor, S], tuple[Tensor, S]]


class IncrementalModel(Protocol[S]):
    """A model that can be read token by token: n-gram, recurrent and attention models, and ensembles of them.

    The caller may overwrite the log-probabilities that `start` and `step` return; it never overwrites a state.
    """

    @property
    def vocabulary(self) -> str:
        """SHA-256 of the target tokenizer. Only models with equal vocabularies can be combined."""

    @property
    def max_positions(self) -> int | None:
        """Maximum number of positions, None if unlimited. Decoders check it once, before the first step."""

    def bytes_per_row(self, tokens: int, state: S | None = None) -> int:
        """Peak bytes per row while reading this many tokens: growth of its state beyond `state`, the initial state of one row,
        and two copies of the log-probabilities."""

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: S | None = None) -> tuple[Tensor, S]:
        """Read a prompt (B, T >= 1), right-padded where token_mask (B, T) is False, starting from `state`. Return the
        log-probabilities of the next token (B, V) and the new state."""

    def step(self, token: Tensor, state: S) -> tuple[Tensor, S]:
        """Read one more token per row, (B,). Return the log-probabilities of the next token (B, V) and the new state."""

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: S | None = None) -> Tensor:
        """Log-probability of every token after the first, (B, T - 1), in one pass; 0 on padding."""


@runtime_checkable
class HasStepper(Protocol[S]):
    """A model with a faster `step` for a decoder that calls it many times."""

    def stepper(self) -> Step[S]:
        """A function that computes what `step` does. Weights may change in place while it is used, but not through `.data`, and
        no part of the model may be replaced."""


@runtime_checkable
class StepsFromNothing(Protocol):
    """A model whose `step`, with None as the state, reads the first token of a text: what `start` does, but faster."""

    steps_from_nothing: bool


def stepper(model: IncrementalModel[S]) -> Step[S]:
    """The `step` of a model, or its faster version."""
    return model.stepper() if isinstance(model, HasStepper) else model.step
