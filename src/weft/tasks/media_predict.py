"""Outputs for files: beam search or sampling with one run or an ensemble, optionally with shallow fusion of a language model.

The members of an ensemble may read files in different ways: each has its own reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from weft.data.frame_batching import pad_frames
from weft.data.frames import FrameReader
from weft.decode.predict import PredictionRequest
from weft.decode.predict import predict as search
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import DataError, UsageError
from weft.media.files import MediaFile
from weft.tasks.spec import InvalidInput, ProgressCallback
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.run import Run

MediaInput = object  # a path, a MediaFile, or what the task reads in memory: a waveform, an image


class InputReader(FrameReader, Protocol):
    """A reader that also takes inputs in memory."""

    def from_memory(self, value: object) -> np.ndarray:
        """The frames (T, F) of a waveform or an image. Raises DataError."""


def read_input(reader: InputReader, value: MediaInput) -> np.ndarray | InvalidInput:
    """The frames of one input; the reason if it cannot be used."""
    try:
        if isinstance(value, MediaFile):
            return reader.read(value)
        if isinstance(value, str | Path):
            return reader.read(MediaFile(Path(value)))
        return reader.from_memory(value)
    except DataError as error:
        return InvalidInput(str(error))


class MediaPredictor:
    """One run or several with the same tokenizer."""

    def __init__(self, run: Run[Any, Prediction]) -> None:
        self.run, self.device, self.lm = run, run.device, run.lm
        self.tokenizer: Tokenizer = run.vocabulary
        self.members = run.members
        self.readers: list[InputReader] = [member.config.data.reader() for member in self.members]

    def read(self, values: Sequence[MediaInput]) -> list[tuple[np.ndarray, ...] | InvalidInput]:
        """The frames of each input, for each member."""
        read: list[tuple[np.ndarray, ...] | InvalidInput] = []
        for value in values:
            frames = [read_input(reader, value) for reader in self.readers]
            invalid = next((part for part in frames if isinstance(part, InvalidInput)), None)
            read.append(invalid or tuple(part for part in frames if not isinstance(part, InvalidInput)))
        return read

    def batch(self, frames: Sequence[tuple[np.ndarray, ...]], member: int = 0) -> tuple[Tensor, Tensor]:
        """The inputs of a member, (B, T, F), and their mask."""
        source, mask = pad_frames([row[member] for row in frames])
        return source.to(self.device), mask.to(self.device)

    def encode(self, frames: Sequence[tuple[np.ndarray, ...]]) -> Any:
        """The state of the model after the inputs, one row each."""
        states = tuple(run.model.encode(*self.batch(frames, number)) for number, run in enumerate(self.members))
        state = states[0] if len(states) == 1 else states
        return state if self.lm is None else (state, None)

    @torch.inference_mode()
    def search(
        self,
        frames: Sequence[tuple[np.ndarray, ...]],
        options: PredictionConfig,
        *,
        prefix: str = "",
        lengths: Callable[[int], int] = lambda frames: frames,
        numbers: Sequence[int] | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[Prediction]]:
        """The outputs for each input: of beam search, best first; samples in the order of sampling. `lengths` is the number of
        positions that a model reads for a number of frames, which limits the output."""
        prefix_ids = self.tokenizer.encode(prefix).tolist()
        if self.tokenizer.unk_id in prefix_ids:
            raise UsageError("target_prefix", f"{prefix!r} contains a token that is not in the vocabulary")
        request = PredictionRequest(
            self.run.model,
            self.tokenizer,
            lambda rows: self.encode([frames[row] for row in rows]),
            [lengths(len(row[0])) for row in frames],
            [prefix_ids] * len(frames),
            self.device,
            None if numbers is None else [number - 1 for number in numbers],
        )
        return search(request, options, progress=progress)

    def signature(self, options: PredictionConfig) -> str:
        """The search, the ensemble and the language model, for signatures of metrics."""
        parts = [options.describe()]
        if len(self.members) > 1:
            parts.append(f"runs:{len(self.members)}")
            if self.run.weights is not None:
                parts.append("weights:" + ",".join(f"{weight:g}" for weight in self.run.weights))
        return "/".join([*parts, self.lm.describe()] if self.lm is not None else parts)
