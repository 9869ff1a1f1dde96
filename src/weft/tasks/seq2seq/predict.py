"""What encoder-decoders are asked for: outputs for sources, scores of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import DataError, UsageError
from weft.tasks.invalid_inputs import mark_faults, process_valid, read_text, read_texts
from weft.tasks.spec import Evaluation, Fault, Files, Progress, phase
from weft.text.reading import check_text

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.seq2seq.decoding import Seq2SeqRun


class PairScore(NamedTuple):
    """A target under a model that has read its source, in nats; the end token is among its tokens."""

    source: str
    target: str
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]

    @property
    def text(self) -> str:
        """The pair as it is read."""
        return f"{self.source}\t{self.target}"

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens)))


class Seq2SeqOptions(PredictionConfig):
    """How to predict a target, and what else to return."""

    prefix: str = ""
    """Force outputs to start with this text."""
    prefixes: list[str] | None = None
    """Force each output to start with its own text."""
    alignments: bool = False
    """Return the attention weights of each prediction."""
    layer: int | None = None
    """Layer of the alignments, from 1. Default: the mean of all."""
    head: int | None = None
    """Head of the alignments, from 1. Default: the mean of all."""
    numbers: list[int] | None = None
    """Line numbers in a larger input, from 1: samples depend on the seed and the number."""


class Seq2SeqEvaluation(PredictionConfig):
    """How to search for outputs, and how BLEU tokenizes them."""

    tokenize: str | None = None
    """Tokenizer of BLEU. Default: the one for the script of the references."""


def refuse(problems: Mapping[int, str], place: Callable[[int], str]) -> None:
    """Refuse the first of the lines that have a fault, by its place."""
    if problems:
        raise DataError(place(min(problems)), f"{problems[min(problems)]}")


def reader(run: Run[str, Prediction]) -> Seq2SeqRun:
    from weft.tasks.seq2seq.decoding import Seq2SeqRun

    return Seq2SeqRun(run)


def source(run: Run[str, Prediction], line: str) -> Any:
    """The state of a decoder that has read a line; one that is too long is refused."""
    from weft.explain.inputs import refuse as refuse_input

    reader: Seq2SeqRun = run.reader
    refuse_input(reader.invalid_inputs([line]))
    return reader.encode([line])


def limit(run: Run[str, Prediction], line: str) -> int:
    """How many tokens the output of a line has at most."""
    from weft.decode.predict import PredictionRequest, limit_of

    reader: Seq2SeqRun = run.reader
    length = min(len(member.sources([line])[0]) for member in reader.members)
    request = PredictionRequest(run.model, run.vocabulary.target, lambda rows: None, [length], [[]], run.device)
    return limit_of(request, 0, PredictionConfig())


def predict(
    run: Run[str, Prediction], lines: Sequence[str], options: Seq2SeqOptions, progress: Progress | None
) -> list[Prediction | Fault]:
    """What each line becomes: a beam's best or the first sample, with its alternatives."""
    reader: Seq2SeqRun = run.reader
    numbers = range(1, 1 + len(lines)) if options.numbers is None else options.numbers
    if len(numbers) != len(lines):
        raise UsageError("predict", f"{len(numbers)} numbers for {len(lines)} lines", "give one a line")
    if options.prefix and options.prefixes is not None:
        raise UsageError("predict", "prefix is of all lines, prefixes of each", "give one of them")
    if options.alignments:
        reader.check_attention()
    elif (options.layer, options.head) != (None, None):
        raise UsageError("--layer and --head", "choose among --save-alignments DIR, which is not given")
    read = mark_faults(
        [read_text(line) for line in lines], lambda valid: reader.invalid_inputs(valid, truncate=options.truncate)
    )
    forced = [options.prefix] * len(read) if options.prefixes is None else options.prefixes
    if len(forced) != len(read):
        raise UsageError("predict", f"{len(forced)} prefixes for {len(read)} lines", "give one a line")
    starts = [check_text(prefix, f"prefix {number}") for number, prefix in zip(numbers, forced, strict=True)]
    kept = ["" if isinstance(line, Fault) else line for line in read]
    found = reader.predict(kept, options, starts, numbers, phase(progress, "predicting"))
    if options.alignments:
        found = reader.aligned(kept, found, options.layer, options.head)
    best = [one._replace(alternatives=tuple(others)) for one, *others in found]
    return [line if isinstance(line, Fault) else one for line, one in zip(read, best, strict=True)]


def evaluate(
    run: Run[str, Prediction], data: Files | None, options: Seq2SeqEvaluation, progress: Progress | None
) -> Evaluation:
    reader: Seq2SeqRun = run.reader
    return reader.evaluate(data, options, phase(progress, "evaluating"))


def _read_pair(given: Any) -> tuple[str, str] | Fault:
    texts = read_texts(given, 2, "must be a source and a target, a tuple of two texts")
    return texts if isinstance(texts, Fault) else (texts[0], texts[1])


def score(
    run: Run[str, Prediction], pairs: Sequence[tuple[str, str]], truncate: bool, progress: Progress | None
) -> list[PairScore | Fault]:
    reader: Seq2SeqRun = run.reader
    read = mark_faults([_read_pair(one) for one in pairs], lambda valid: reader.invalid_pairs(valid, truncate=truncate))
    return process_valid(read, lambda valid: reader.score(valid, truncate=truncate, progress=phase(progress, "scoring")))


def unknown(run: Run[str, Prediction], lines: Sequence[str]) -> list[str]:
    reader: Seq2SeqRun = run.reader
    return reader.unknown_tokens(lines)
