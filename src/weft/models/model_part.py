"""A group of parameters of a model."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    side: str  # encoder, decoder or char_encoder if the model has several; else ""
    name: str
    num_parameters: int
    tied: tuple[str, ...] = ()  # other parts that share these weights

    @property
    def title(self) -> str:
        return f"{self.side} {self.name}".lstrip()
