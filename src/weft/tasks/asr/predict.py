"""Recognition, scoring and evaluation of recordings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import PairScore, Prediction
from weft.errors import UsageError
from weft.tasks.invalid_inputs import process_valid
from weft.tasks.spec import Evaluation, Files, InvalidInput, Progress, StreamedText, phase

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.asr.decoding import SpeechPredictor
    from weft.tasks.media_predict import MediaInput


class SpeechOptions(PredictionConfig):
    """How to recognize, and what else to return. Scores are not divided by the length: CTC needs no correction for it."""

    target_prefix: str = ""
    """Force outputs to start with this text."""
    return_alignments: bool = False
    """Return the times of the words, and the picture of the recording with them."""
    numbers: list[int] | None = None
    """Line numbers in a larger input, from 1: samples depend on the seed and the number."""

    @property
    def resolved_length_penalty(self) -> float:
        return 0.0 if self.length_penalty is None else self.length_penalty


class SpeechEvaluation(PredictionConfig):
    """How to search for outputs."""

    @property
    def resolved_length_penalty(self) -> float:
        return 0.0 if self.length_penalty is None else self.length_penalty


def predictor(run: Run[Any, Prediction]) -> SpeechPredictor:
    from weft.tasks.asr.decoding import SpeechPredictor

    return SpeechPredictor(run)


def is_recording(run: Run[Any, Prediction], value: object) -> bool:
    """Whether a value is one input: a path, an array of samples, or a tuple of samples and their rate."""
    from pathlib import Path

    from weft.media.files import MediaFile

    if isinstance(value, tuple) and not isinstance(value, MediaFile):
        return len(value) == 2 and isinstance(value[1], int)
    return isinstance(value, str | Path | MediaFile | np.ndarray)


def encode_source(run: Run[Any, Prediction], value: MediaInput) -> Any:
    """The state of a decoder after encoding a recording."""
    predictor: SpeechPredictor = run.predictor
    return predictor.encode([predictor.read_or_raise(value)])


def max_new_tokens(run: Run[Any, Prediction], value: MediaInput) -> int:
    """The maximum number of output tokens for a recording: CTC emits at most one per position."""
    predictor: SpeechPredictor = run.predictor
    return predictor.positions(len(predictor.read_or_raise(value)[0]))


def predict(
    run: Run[Any, Prediction], inputs: Sequence[MediaInput], options: SpeechOptions, progress: Progress | None
) -> list[Prediction | InvalidInput]:
    """The best output or the first sample for each recording, with its alternatives."""
    predictor: SpeechPredictor = run.predictor
    if options.return_alignments:
        predictor.check_alignable()
    if options.numbers is not None and len(options.numbers) != len(inputs):
        raise UsageError("numbers", f"expected one per input ({len(inputs)}), got {len(options.numbers)}")
    return process_valid(
        predictor.read(inputs), lambda frames: predictor.recognize(frames, options, phase(progress, "recognizing"))
    )


def predict_stream(run: Run[Any, Prediction], pieces: Iterable[bytes | np.ndarray], pause: float) -> Iterator[StreamedText]:
    """The text of a recording that arrives in pieces, after each change."""
    from weft.tasks.asr import utterances

    return utterances.predict_stream(run, pieces, pause)


def evaluate(run: Run[Any, Prediction], data: Files | None, options: SpeechEvaluation, progress: Progress | None) -> Evaluation:
    predictor: SpeechPredictor = run.predictor
    return predictor.evaluate(data, options, phase(progress, "evaluating"))


def score(
    run: Run[Any, Prediction], pairs: Sequence[tuple[MediaInput, str]], truncate: bool, progress: Progress | None
) -> list[PairScore | InvalidInput]:
    predictor: SpeechPredictor = run.predictor
    return predictor.score(list(pairs), phase(progress, "scoring"))
