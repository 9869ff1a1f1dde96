"""Outputs for files: beam search or sampling with one run or an ensemble, optionally with shallow fusion of a language model.

The members of an ensemble may read files in different ways: each has its own reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from weft.data.dataset import Dataset
from weft.data.frame_batching import pad_frames
from weft.data.frames import FrameReader, write_frames
from weft.data.manifest import MediaRecord, media_file
from weft.decode.predict import PredictionRequest
from weft.decode.predict import predict as search
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import PairScore, Prediction
from weft.errors import DataError, UsageError
from weft.media.files import MediaFile
from weft.nn import ctc
from weft.parallel.sharing import merge, share
from weft.runs.eval_data import eval_source
from weft.tasks.media_data import references
from weft.tasks.spec import Files, InvalidInput, ProgressCallback
from weft.text.reading import check_text, subject
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.run import Run

MediaInput = object  # a path, a MediaFile, or what the task reads in memory: a waveform, an image
Frames = tuple[np.ndarray, ...]  # of one input, for each member of an ensemble
BATCH_SOURCES = 32


class EvaluationInputs(NamedTuple):
    """The files of evaluation data that could be read."""

    frames: list[Frames]
    files: list[MediaFile]
    references: list[tuple[str, ...]]
    lengths: np.ndarray  # int64 (N,): frames
    notes: tuple[str, ...]


class InputReader(FrameReader, Protocol):
    """A reader that also takes inputs in memory."""

    def from_memory(self, value: object) -> np.ndarray:
        """The frames (T, F) of a waveform or an image. Raises DataError."""


def read_input(reader: InputReader, value: MediaInput) -> np.ndarray | InvalidInput:
    """The frames of one input; the reason if it cannot be used."""
    try:
        if isinstance(value, MediaFile):
            return reader.read(value)
        if isinstance(value, str) and not value.strip():
            return InvalidInput("no path")
        if isinstance(value, str | Path):
            return reader.read(media_file(str(value), Path()))
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

    def read(self, values: Sequence[MediaInput]) -> list[Frames | InvalidInput]:
        """The frames of each input, for each member."""
        read: list[Frames | InvalidInput] = []
        for value in values:
            frames = [read_input(reader, value) for reader in self.readers]
            invalid = next((part for part in frames if isinstance(part, InvalidInput)), None)
            read.append(invalid or tuple(part for part in frames if not isinstance(part, InvalidInput)))
        return read

    def batch(self, frames: Sequence[Frames], member: int = 0) -> tuple[Tensor, Tensor]:
        """The inputs of a member, (B, T, F), and their mask."""
        source, mask = pad_frames([row[member] for row in frames])
        return source.to(self.device), mask.to(self.device)

    def encode(self, frames: Sequence[Frames]) -> Any:
        """The state of the model after the inputs, one row each."""
        states = tuple(run.model.encode(*self.batch(frames, number)) for number, run in enumerate(self.members))
        state = states[0] if len(states) == 1 else states
        return state if self.lm is None else (state, None)

    def read_or_raise(self, value: MediaInput) -> Frames:
        """The frames of one input."""
        (frames,) = self.read([value])
        if isinstance(frames, InvalidInput):
            raise DataError("input", frames.reason)
        return frames

    @property
    def is_ctc_alone(self) -> bool:
        """Whether outputs depend on nothing but the CTC output of one model."""
        return len(self.members) == 1 and self.lm is None and self.members[0].model.decoder is None

    def positions(self, frames: int) -> int:
        """The positions of the encoder for a number of frames, which limit the output."""
        return frames

    # ---- searching

    def outputs(
        self,
        frames: Sequence[Frames],
        options: PredictionConfig,
        *,
        prefix: str = "",
        numbers: Sequence[int] | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[Prediction]:
        """The best output or the first sample for each input, with its alternatives. Greedy outputs of CTC are those of the
        best path, which a stream has as well."""
        is_constrained = bool(prefix or options.banned_tokens or options.min_new_tokens)
        is_greedy = not options.is_sampling and options.resolved_beam_size == 1
        if is_greedy and self.is_ctc_alone and not is_constrained:
            return self.best_paths(frames, progress)
        searched = self.search(frames, options, prefix=prefix, numbers=numbers, progress=progress)
        return [best._replace(alternatives=tuple(rest)) for best, *rest in searched]

    @torch.inference_mode()
    def search(
        self,
        frames: Sequence[Frames],
        options: PredictionConfig,
        *,
        prefix: str = "",
        numbers: Sequence[int] | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[Prediction]]:
        """The outputs for each input: of beam search, best first; samples in the order of sampling."""
        prefix_ids = self.tokenizer.encode(prefix).tolist()
        if self.tokenizer.unk_id in prefix_ids:
            raise UsageError("target_prefix", f"{prefix!r} contains a token that is not in the vocabulary")
        request = PredictionRequest(
            self.run.model,
            self.tokenizer,
            lambda rows: self.encode([frames[row] for row in rows]),
            [self.positions(len(row[0])) for row in frames],
            [prefix_ids] * len(frames),
            self.device,
            indices=None if numbers is None else [number - 1 for number in numbers],
            group=self.run.group,
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

    @torch.inference_mode()
    def best_paths(self, frames: Sequence[Frames], progress: ProgressCallback | None) -> list[Prediction]:
        """Greedy decoding of CTC: the most probable label at each position."""
        found: dict[int, Any] = {}  # path and score by row
        order = sorted(range(len(frames)), key=lambda row: len(frames[row][0]))
        model: Any = self.members[0].model
        group, done = self.run.group, 0
        for low in share(range(0, len(order), BATCH_SOURCES), group):
            rows = order[low : low + BATCH_SOURCES]
            memory = model.encoder(*self.batch([frames[row] for row in rows]))
            log_probs = model.frame_log_probs(memory)
            paths = ctc.best_path(log_probs, memory.token_mask, blank=model.blank)
            scores = log_probs.amax(-1).masked_fill(~memory.token_mask, 0.0).sum(1).tolist()
            found |= zip(rows, zip(paths, scores, strict=True), strict=True)
            done += len(rows) * group.size
            if progress is not None:
                progress(min(done, len(frames)), len(frames))
        found = merge(found, group)
        return [
            Prediction(self.tokenizer.decode(path), [*path, model.blank], score, score)
            for path, score in (found[row] for row in range(len(frames)))
        ]

    # ---- scoring

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[tuple[MediaInput, str]], progress: ProgressCallback | None
    ) -> list[PairScore | InvalidInput]:
        """The log-probability of each text, and of each of its tokens."""
        results: list[PairScore | InvalidInput] = []
        limit: int | None = self.run.model.max_positions
        for number, (value, text) in enumerate(pairs, 1):
            (frames,) = self.read([value])
            if isinstance(frames, InvalidInput):
                results.append(frames)
                continue
            ids = self.tokenizer.encode(check_text(text, f"line {number}")).tolist()
            tokens = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
            length = len(tokens) - 1  # </s> is not read
            if limit is not None and length > limit:
                results.append(InvalidInput(f"{length:,} target tokens exceed the model's limit of {limit}; shorten it"))
                continue
            scores = self.run.model.score(torch.tensor([tokens], device=self.device), None, self.encode([frames]))
            log_probs = scores[0].double().cpu().tolist()
            names = [self.tokenizer.token_text(token) for token in tokens[1:]]
            results.append(PairScore(str(value), text, sum(log_probs), names, log_probs))
            if progress is not None:
                progress(number, len(pairs))
        return results

    # ---- evaluating

    @contextmanager
    def evaluation_frames(self, data: Files | None) -> Iterator[EvaluationInputs]:
        """The files of evaluation data, each once, while the block runs: frames larger than memory are on disk."""
        dataset: Dataset[MediaRecord] = eval_source(self.run.directory, self.run.config, data)
        texts = references(dataset)
        with TemporaryDirectory(prefix="weft-") as directory:
            stored = [
                write_frames(dataset, reader, Path(directory), f"data.{number}") for number, reader in enumerate(self.readers)
            ]
            lengths = np.stack([np.diff(frames.starts) for frames in stored])
            items = np.flatnonzero((lengths > 0).all(0)).tolist()
            frames = [tuple(part.values[part.starts[item] : part.starts[item + 1]] for part in stored) for item in items]
            files, expected, skipped = list(texts), list(texts.values()), len(texts) - len(items)
            notes = (f"{subject(skipped, 'file', 'was', 'were')} skipped",) if skipped else ()
            yield EvaluationInputs(
                frames, [files[item] for item in items], [expected[item] for item in items], lengths[0][items], notes
            )
