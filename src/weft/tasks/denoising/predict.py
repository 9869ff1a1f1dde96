"""Options and functions of prediction with denoising models: a text with masks in, the restored text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.tasks.encoder_decoder import predict as encoder_decoder
from weft.tasks.encoder_decoder.predict import EncoderDecoderOptions
from weft.tasks.invalid_inputs import mark_invalid, read_text
from weft.tasks.spec import Evaluation, Files, InvalidInput, Progress, phase

if TYPE_CHECKING:
    from weft.decode.predict import Search
    from weft.runs.run import Run
    from weft.tasks.denoising.restoring import DenoisingPredictor


class DenoisingOptions(EncoderDecoderOptions):
    """How to restore a text, and what else to return."""

    add_noise: bool = False
    """Corrupt each text as in training before it is restored; `seed` and the line number determine the noise."""


class DenoisingEvaluation(PredictionConfig):
    """How to search for restored texts. All evaluations add the same noise."""


def predictor(run: Run[str, Prediction]) -> DenoisingPredictor:
    from weft.tasks.denoising.restoring import DenoisingPredictor

    return DenoisingPredictor(run)


def predict(
    run: Run[str, Prediction], texts: Sequence[str], options: DenoisingOptions, progress: Progress | None
) -> list[Prediction | InvalidInput]:
    """The restored text of each text, with its alternatives. With `add_noise`, `source` is the corrupted text."""
    if not options.add_noise:
        return encoder_decoder.predict(run, texts, options, progress)
    if options.return_alignments or options.target_prefix or options.target_prefixes is not None:
        option = "return_alignments" if options.return_alignments else "target_prefix"
        raise UsageError("add_noise", f"cannot be combined with `{option}`", "corrupt the text yourself")
    predictor: DenoisingPredictor = run.predictor
    numbers = range(1, 1 + len(texts)) if options.numbers is None else options.numbers
    if len(numbers) != len(texts):
        raise UsageError("numbers", f"expected one per line ({len(texts)}), got {len(numbers)}")
    checked = mark_invalid(
        [read_text(text) for text in texts], lambda valid: predictor.invalid_texts(valid, truncate=options.truncate)
    )
    valid = [(text, number) for text, number in zip(checked, numbers, strict=True) if not isinstance(text, InvalidInput)]
    restored = iter(
        predictor.predict_corrupted([text for text, _ in valid], [n for _, n in valid], options, phase(progress, "predicting"))
    )
    return [text if isinstance(text, InvalidInput) else next(restored) for text in checked]


def prepare_search(run: Run[str, Prediction], texts: Sequence[str], options: DenoisingOptions) -> Search | None:
    """What `predict` searches for; None if it adds noise first."""
    return None if options.add_noise else encoder_decoder.prepare_search(run, texts, options)


def evaluate(
    run: Run[str, Prediction], data: Files | None, options: DenoisingEvaluation, progress: Progress | None
) -> Evaluation:
    predictor: DenoisingPredictor = run.predictor
    return predictor.evaluate(data, options, phase(progress, "evaluating"))
