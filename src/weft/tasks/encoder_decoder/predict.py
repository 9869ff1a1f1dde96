"""Prediction and scoring with encoder-decoders, for the tasks that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.data.memory import list_inputs
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import PairScore, Prediction
from weft.errors import DataError, UsageError
from weft.tasks.invalid_inputs import mark_invalid, process_valid, read_text, read_texts
from weft.tasks.spec import InvalidInput, Progress, phase
from weft.text.reading import check_text

if TYPE_CHECKING:
    from weft.decode.predict import Search
    from weft.runs.run import Run
    from weft.tasks.encoder_decoder.predictor import EncoderDecoderPredictor


class EncoderDecoderOptions(PredictionConfig):
    """How to predict a target, and what else to return."""

    target_prefix: str = ""
    """Force outputs to start with this text."""
    target_prefixes: list[str] | None = None
    """Force each output to start with its own text."""
    return_alignments: bool = False
    """Return the attention weights of each prediction."""
    layer: int | None = None
    """Layer of the alignments, from 1. Default: the mean of all."""
    head: int | None = None
    """Head of the alignments, from 1. Default: the mean of all."""
    numbers: list[int] | None = None
    """Line numbers in a larger input, from 1: samples depend on the seed and the number."""


def refuse(problems: Mapping[int, str], location: Callable[[int], str]) -> None:
    """Raise an error for the first line with a problem, if there is one."""
    if problems:
        problem, _, fix = problems[min(problems)].partition("; ")
        raise DataError(location(min(problems)), problem, fix)


def encode_source(run: Run[str, Prediction], line: str) -> Any:
    """The state of a decoder after encoding a line; a line that is too long is an error."""
    from weft.explain.inputs import raise_if_invalid

    predictor: EncoderDecoderPredictor = run.predictor
    raise_if_invalid(predictor.invalid_inputs([line]))
    return predictor.encode([line])


def max_new_tokens(run: Run[str, Prediction], line: str) -> int:
    """The maximum number of output tokens for a line."""
    from weft.decode.predict import PredictionRequest, max_new_tokens_for

    predictor: EncoderDecoderPredictor = run.predictor
    length = min(len(member.sources([line])[0]) for member in predictor.members)
    target = predictor.tokenizer.target
    request = PredictionRequest(run.model, target, lambda rows: None, [length], [[]], run.device, target.start_tokens.target)
    return max_new_tokens_for(request, 0, PredictionConfig())


def predict(
    run: Run[str, Prediction], lines: Sequence[str], options: EncoderDecoderOptions, progress: Progress | None
) -> list[Prediction | InvalidInput]:
    """The best output or the first sample for each line, with its alternatives."""
    predictor: EncoderDecoderPredictor = run.predictor
    return predictor.search(prepare_search(run, lines, options), options, phase(progress, "predicting"))


def prepare_search(run: Run[str, Prediction], lines: Sequence[str], options: EncoderDecoderOptions) -> Search:
    """What `predict` searches for, and how the outputs become its results."""
    from weft.decode.predict import Search

    predictor: EncoderDecoderPredictor = run.predictor
    numbers = range(1, 1 + len(lines)) if options.numbers is None else options.numbers
    if len(numbers) != len(lines):
        raise UsageError("numbers", f"expected one per line ({len(lines)}), got {len(numbers)}")
    if options.target_prefix and options.target_prefixes is not None:
        raise UsageError("target_prefix", "cannot be combined with `target_prefixes`", "set only one of them")
    if options.return_alignments:
        predictor.check_attention()
    elif (options.layer, options.head) != (None, None):
        raise UsageError("layer" if options.layer is not None else "head", "requires `return_alignments`")
    checked = mark_invalid(
        [read_text(line) for line in lines], lambda valid: predictor.invalid_inputs(valid, truncate=options.truncate)
    )
    prefixes = [options.target_prefix] * len(checked) if options.target_prefixes is None else options.target_prefixes
    if len(prefixes) != len(checked):
        raise UsageError("target_prefixes", f"expected one per line ({len(checked)}), got {len(prefixes)}")
    prefixes = [check_text(prefix, f"target prefix {number}") for number, prefix in zip(numbers, prefixes, strict=True)]
    sources = ["" if isinstance(line, InvalidInput) else line for line in checked]
    prepared = predictor.prepare(sources, prefixes, numbers)

    def finish(found: list[list[Prediction]]) -> list[Prediction | InvalidInput]:
        outputs = prepared.finish(found)
        if options.return_alignments:
            outputs = predictor.with_alignments(sources, outputs, options.layer, options.head)
        predictions = [best._replace(alternatives=tuple(rest)) for best, *rest in outputs]
        return [line if isinstance(line, InvalidInput) else output for line, output in zip(checked, predictions, strict=True)]

    return Search(prepared.request, finish)


def _read_pair(value: Any) -> tuple[str, str] | InvalidInput:
    texts = read_texts(value, 2, "expected a tuple of a source and a target")
    return texts if isinstance(texts, InvalidInput) else (texts[0], texts[1])


def score(
    run: Run[str, Prediction], pairs: Sequence[tuple[str, str]], truncate: bool, progress: Progress | None
) -> list[PairScore | InvalidInput]:
    predictor: EncoderDecoderPredictor = run.predictor
    checked = mark_invalid(
        [_read_pair(pair) for pair in list_inputs(pairs)], lambda valid: predictor.invalid_pairs(valid, truncate=truncate)
    )
    return process_valid(checked, lambda valid: predictor.score(valid, truncate=truncate, progress=phase(progress, "scoring")))


def unknown_tokens(run: Run[str, Prediction], lines: Sequence[str]) -> list[str]:
    predictor: EncoderDecoderPredictor = run.predictor
    return predictor.unknown_tokens(lines)
