"""A part of a model, as it is counted."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    side: str  # encoder, decoder or spelling, where a model has several; else ""
    name: str
    num_parameters: int
    tied: tuple[str, ...] = ()  # other parts that are these same weights

    @property
    def title(self) -> str:
        return f"{self.side} {self.name}".lstrip()
