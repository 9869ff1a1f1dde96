"""Captions of files: prediction, scoring and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.data.memory import is_table
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import PairScore, Prediction
from weft.errors import UsageError
from weft.media.files import MediaFile
from weft.tasks.invalid_inputs import process_valid
from weft.tasks.spec import Evaluation, Files, InvalidInput, Progress, phase

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.captioning.decoding import CaptionPredictor
    from weft.tasks.media_predict import MediaInput


class CaptionOptions(PredictionConfig):
    """How to search for captions, and what else to return. Scores are not divided by the length: captions of one word compete
    with those of ten."""

    target_prefix: str = ""
    """Force outputs to start with this text."""
    return_alignments: bool = False
    """Return the attention of each word, and the picture of it."""
    layer: int | None = None
    """Layer of the decoder whose attention is returned, from 1. Default: the mean."""
    head: int | None = None
    """Attention head, from 1. Default: the mean."""
    numbers: list[int] | None = None
    """Line numbers in a larger input, from 1: samples depend on the seed and the number."""

    @property
    def resolved_length_penalty(self) -> float:
        return 0.0 if self.length_penalty is None else self.length_penalty


class CaptionEvaluation(PredictionConfig):
    """How to search for captions."""

    @property
    def resolved_length_penalty(self) -> float:
        return 0.0 if self.length_penalty is None else self.length_penalty


def predictor(run: Run[Any, Prediction]) -> CaptionPredictor:
    from weft.tasks.captioning.decoding import CaptionPredictor

    return CaptionPredictor(run)


def is_file(run: Run[Any, Prediction], value: object) -> bool:
    """Whether a value is one input: a path, an image or an array. A list or a table is several inputs; a clip is an array."""
    return isinstance(value, MediaFile) or not (isinstance(value, list | tuple) or is_table(value))


def encode_source(run: Run[Any, Prediction], value: MediaInput) -> Any:
    """The state of a decoder after encoding a file."""
    predictor: CaptionPredictor = run.predictor
    return predictor.encode([predictor.read_or_raise(value)])


def max_new_tokens(run: Run[Any, Prediction], value: MediaInput) -> int:
    """The maximum number of output tokens for a file."""
    predictor: CaptionPredictor = run.predictor
    return predictor.max_new_tokens(len(predictor.read_or_raise(value)[0]))


def predict(
    run: Run[Any, Prediction], inputs: Sequence[MediaInput], options: CaptionOptions, progress: Progress | None
) -> list[Prediction | InvalidInput]:
    """The best output or the first sample for each file, with its alternatives."""
    predictor: CaptionPredictor = run.predictor
    for option in ("layer", "head"):
        if getattr(options, option) is not None and not options.return_alignments:
            raise UsageError(option, "requires `return_alignments`")
    if options.return_alignments:
        predictor.check_alignable(options)
    if options.numbers is not None and len(options.numbers) != len(inputs):
        raise UsageError("numbers", f"expected one per input ({len(inputs)}), got {len(options.numbers)}")
    read = predictor.read(inputs)
    values = [value for value, frames in zip(inputs, read, strict=True) if not isinstance(frames, InvalidInput)]
    return process_valid(read, lambda frames: predictor.caption(values, frames, options, phase(progress, "captioning")))


def evaluate(
    run: Run[Any, Prediction], data: Files | None, options: CaptionEvaluation, progress: Progress | None
) -> Evaluation:
    predictor: CaptionPredictor = run.predictor
    return predictor.evaluate(data, options, phase(progress, "evaluating"))


def score(
    run: Run[Any, Prediction], pairs: Sequence[tuple[MediaInput, str]], truncate: bool, progress: Progress | None
) -> list[PairScore | InvalidInput]:
    predictor: CaptionPredictor = run.predictor
    return predictor.score(list(pairs), phase(progress, "scoring"))
