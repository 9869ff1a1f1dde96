"""The interface of a program that decodes with the weights of a run, instead of weft itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from weft.decode.detokenize import TokenDecoder
from weft.decode.generate import Continuation, ContinueCallback, Frame
from weft.decode.options import GenerationConfig
from weft.decode.predict import PredictionRequest
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction


class Decoder(Protocol):
    """The functions of `weft.decode.predict` and `weft.decode.generate`, with the same arguments and results. An option that
    the program does not have is a UsageError."""

    def describe(self) -> str:
        """Its name and precision, for a signature."""

    def predict(
        self, request: PredictionRequest, options: PredictionConfig, *, progress: Callable[[int, int], None] | None = None
    ) -> list[list[Prediction]]:
        """The predictions for each source; `request.sources` has the tokens of each, by member of an ensemble."""

    def generate(
        self,
        model: Any,
        tokenizer: TokenDecoder,
        prompts: Sequence[str],
        options: GenerationConfig,
        *,
        frame: Frame,
        device: torch.device | str = "cpu",
        should_continue: ContinueCallback | None = None,
    ) -> list[list[Continuation]]:
        """The continuations of each prompt."""

    def stream(
        self,
        model: Any,
        tokenizer: TokenDecoder,
        prompt: str,
        options: GenerationConfig,
        *,
        frame: Frame,
        device: torch.device | str = "cpu",
    ) -> Iterator[str]:
        """The first continuation of a prompt, in chunks."""
