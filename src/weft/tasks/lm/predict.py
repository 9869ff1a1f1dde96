"""Scores of texts and continuations of prompts by language models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.data.bos import read_bos
from weft.data.bucketing import batch_edges
from weft.data.corpus import Corpus
from weft.data.memory import list_inputs
from weft.decode.options import GenerationConfig, length_problem
from weft.errors import DataError
from weft.files import sha256
from weft.metrics.lm import EvaluationSetup, language_scores
from weft.runs.eval_data import EvalData
from weft.tasks.invalid_inputs import mark_invalid, process_valid, read_text
from weft.tasks.lm.compare import item_predictions
from weft.tasks.lm.contexts import Context, resolve_context
from weft.tasks.lm.members import Member, mixture_nll
from weft.tasks.lm.scoring import BATCH_TOKENS, items
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Progress, ProgressCallback, phase, scores_by_name
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.decode.generate import Continuation, ContinueCallback, Frame
    from weft.runs.run import Run


class LanguageOptions(Options):
    """Options of evaluation."""

    context: str | None = None  # the context policy; None: full


class TextScore(NamedTuple):
    """The log-probability of a text; its tokens include </s> if the model reads lines."""

    text: str
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens))) if self.tokens else float("nan")


def _report_scored(progress: Callable[[int], None], before: int, lengths: Sequence[int], done: int) -> None:
    """Report the scored tokens of texts of these lengths after `done` positions, of which `before` precede the texts."""
    progress(sum(min(max(0, done - before), length) for length in lengths))


class LanguageModelPredictor:
    """Scores and continues texts with a language model."""

    def __init__(self, run: Run[str, None]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.members = [Member(member) for member in run.members]
        self.tokenizer: Tokenizer = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `start`, `step`, `score`, `loss`."""
        return self.run.model

    @property
    def reads_lines(self) -> bool:
        """Whether each line is a separate text."""
        return bool(self.config.data.read_as == "lines")

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text; running text has none."""
        return self.tokenizer.eos_id if self.reads_lines else None

    @cached_property
    def bos_ids(self) -> list[int]:
        """The tokens that precede a separate text: <s> if the run reads lines, otherwise a frequent beginning in the training
        text, such as a newline."""
        return [self.tokenizer.bos_id] if self.reads_lines else read_bos(self.directory.path, self.tokenizer)

    @property
    def frame(self) -> Frame:
        """The tokens before and after a text."""
        from weft.decode.generate import Frame

        return Frame(self.eos_id, self.bos_ids)

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of a text; None: no limit."""
        max_positions: int | None = self.model.max_positions
        return None if max_positions is None else max_positions - len(self.bos_ids) + 1

    def context(self, text: str | None) -> Context:
        """The context policy `text` for this run; None: `full`."""
        return resolve_context(self.config, text)

    # ---- whole texts

    def evaluation_setup(self, context: str | None = None) -> EvaluationSetup:
        """The evaluation setup for signatures."""
        contexts = "+".join(dict.fromkeys(str(member.context(context)) for member in self.members))
        caches = [member.run.cache.signature() for member in self.members if member.run.cache is not None]
        unit = "line" if self.reads_lines else "block"
        return EvaluationSetup(contexts, unit, self.tokenizer.hash, mixture=self._mixture_signature(), cache="+".join(caches))

    def _mixture_signature(self) -> str:
        """Checksum and weight of each model of a mixture."""
        if len(self.members) == 1:
            return ""
        weights = self.run.weights or [1 / len(self.members)] * len(self.members)
        checksums = [sha256(member.run.directory.weights)[:8] for member in self.members]
        return "+".join(f"{checksum}*{weight:.4g}" for checksum, weight in zip(checksums, weights, strict=True))

    def token_losses(
        self,
        data: Files | None = None,
        *,
        context: str | None = None,
        progress: ProgressCallback | None = None,
        tokenize_progress: ProgressCallback | None = None,
    ) -> tuple[NDArray[np.float32], Corpus]:
        """The loss of every token of a text, (N,), and the tokenized text."""
        for member in self.members:  # an invalid policy is refused before the text is read
            member.context(context)
        with TemporaryDirectory() as directory:  # a memory map outlives its file
            corpus = EvalData(self.directory, self.config, self.tokenizer).corpus(data, Path(directory), tokenize_progress)
            nll = [member.corpus_nll(corpus, context, progress) for member in self.members]
        return mixture_nll(nll, self.run.weights), corpus

    # ---- lines

    def score(self, lines: Sequence[str], *, progress: ProgressCallback | None = None) -> list[TextScore]:
        """The log-probability of each line, and of each of its tokens.

        `progress` gets tokens done and tokens in total before each batch but the first.
        """
        checked = [check_text(line, f"line {number}") for number, line in enumerate(lines, 1)]
        if problems := self.invalid_inputs(checked):
            problem, _, fix = problems[min(problems)].partition("; ")
            raise DataError(f"line {1 + min(problems)}", problem, fix)
        eos = [] if self.eos_id is None else [self.eos_id]
        texts = [[*ids.tolist(), *eos] for ids in self.tokenizer.encode_batch(checked)]
        order = np.argsort([len(text) for text in texts], kind="stable")
        # BOS tokens are inputs as well
        edges = batch_edges(np.array([len(texts[index]) + len(self.bos_ids) for index in order], np.int64), BATCH_TOKENS)
        log_probs: dict[int, list[float]] = {}
        done, total = 0, sum(map(len, texts))

        def report(in_batch: int) -> None:
            if progress is not None and done + in_batch:
                progress(done + in_batch, total)

        for low, high in pairwise(edges.tolist()):
            report(0)
            batch = [texts[index] for index in order[low:high]]
            log_probs |= zip(order[low:high].tolist(), self._score(batch, report), strict=True)
            done += sum(map(len, batch))
        return [
            TextScore(
                line,
                float(sum(log_probs[index])),
                [self.tokenizer.token_text(token) for token in texts[index]],
                log_probs[index],
            )
            for index, line in enumerate(checked)
        ]

    def invalid_inputs(self, lines: Sequence[str]) -> dict[int, str]:
        """Lines that are too long for a model with a limited number of positions, by number from 0, with the problem."""
        max_tokens = self.max_tokens
        if max_tokens is None:
            return {}
        lengths = self.tokenizer.encode_concatenated(lines)[1] + int(self.reads_lines)
        return {
            int(number): f"{lengths[number]:,} tokens exceed the model's limit of {max_tokens}; shorten it"
            for number in np.flatnonzero(lengths > max_tokens)
        }

    def _score(self, texts: list[list[int]], progress: Callable[[int], None]) -> list[list[float]]:
        width = max(map(len, texts))
        if width == 0:
            return [[] for _ in texts]
        tokens = np.array([[*self.bos_ids, *text, *[0] * (width - len(text))] for text in texts], np.int64)
        before = len(self.bos_ids) - 1  # targets that are not part of the text
        report = partial(_report_scored, progress, before, [len(text) for text in texts])
        nll = mixture_nll([member.row_nll(tokens, report) for member in self.members], self.run.weights)
        # padding follows the last token of a row, so its scores are removed
        return [row[before : before + len(text)] for row, text in zip((-nll).tolist(), texts, strict=True)]

    # ---- generation

    def unknown_tokens(self, prompts: Sequence[str]) -> list[str]:
        """The parts of the prompts that become <unk>, in order."""
        tokenizer = self.tokenizer
        with_unk = [text for text, ids in zip(prompts, tokenizer.encode_batch(prompts), strict=True) if tokenizer.unk_id in ids]
        return tokenizer.unknown_parts(with_unk)

    def invalid_prompts(self, prompts: Sequence[str], options: GenerationConfig) -> dict[int, str]:
        """Prompts that cannot be continued by `max_new_tokens`, by number from 0, with the problem."""
        lengths = (self.tokenizer.encode_concatenated(prompts)[1] + len(self.bos_ids)).tolist()
        problems = [length_problem(self.model.max_positions, length, options.max_new_tokens) for length in lengths]
        return {number: problem for number, problem in enumerate(problems) if problem is not None}


def prompt_ids(run: Run[str, None], text: str) -> list[int]:
    """The tokens of a text and those that precede it."""
    return [*run.predictor.bos_ids, *run.vocabulary.encode(text).tolist()]


def suppressed_tokens(run: Run[str, None]) -> list[int]:
    """Tokens that are never generated: special tokens, except </s> if texts end with it."""
    eos = [Tokenizer.eos_id] if run.predictor.eos_id is None else []
    return [Tokenizer.unk_id, Tokenizer.bos_id, *eos]


def evaluate(run: Run[str, None], data: Files | None, options: LanguageOptions, progress: Progress | None) -> Evaluation:
    """Exact scores of a whole text, by line, or by block of running text."""
    predictor: LanguageModelPredictor = run.predictor
    losses, corpus = predictor.token_losses(
        data, context=options.context, progress=phase(progress, "evaluating"), tokenize_progress=phase(progress, "tokenizing")
    )
    statistics = items(losses, corpus)
    scores = language_scores(statistics, predictor.evaluation_setup(options.context))
    details = partial(item_predictions, run, losses, corpus)
    notes = _notes_on_fitting(run, data)
    return Evaluation(scores_by_name(scores), statistics, details, "tokens/s scored", len(losses), notes=notes)


def _notes_on_fitting(run: Run[str, None], data: Files | None) -> tuple[str, ...]:
    """A note if weights or caches may have been fitted on the evaluated data itself."""
    is_fitted = run.weights is not None or any(member.cache is not None for member in run.members)
    if data is not None or "test" in run.config.datasets or not is_fitted:
        return ()
    return ("the run has no test data; weights and caches that are fitted on this validation data look too good",)


def score(
    run: Run[str, None], lines: str | Sequence[str], truncate: bool, progress: Progress | None
) -> list[TextScore | InvalidInput]:
    """The log-probability of each line, or of one string, and of each of its tokens."""
    predictor: LanguageModelPredictor = run.predictor
    checked = mark_invalid([read_text(line) for line in list_inputs(lines)], predictor.invalid_inputs)
    return process_valid(checked, lambda valid: predictor.score(valid, progress=phase(progress, "scoring")))


def unknown_tokens(run: Run[str, None], prompts: Sequence[str]) -> list[str]:
    predictor: LanguageModelPredictor = run.predictor
    return predictor.unknown_tokens(prompts)


def frame_prompts(run: Run[str, None], prompts: Sequence[str]) -> tuple[list[str], Frame]:
    """The prompts, and the tokens around a text."""
    texts = [check_text(text, f"prompt {number}") for number, text in enumerate(prompts, 1)]
    return texts, run.predictor.frame


def generate(
    run: Run[str, None], prompts: str | Sequence[str], options: GenerationConfig, should_continue: ContinueCallback | None
) -> list[list[Continuation]]:
    """Continuations of each prompt, or of one string; of beam search, best first."""
    from weft.decode import generate as decoding

    texts, frame = frame_prompts(run, list_inputs(prompts))
    decode = decoding.generate if run.decoder is None else run.decoder.generate
    return decode(run.model, run.vocabulary, texts, options, frame=frame, device=run.device, should_continue=should_continue)


def stream(run: Run[str, None], prompt: str, options: GenerationConfig) -> Iterator[str]:
    """One continuation as a stream of text."""
    from weft.decode import generate as decoding

    frame = run.predictor.frame
    decode = decoding.stream if run.decoder is None else run.decoder.stream
    return decode(run.model, run.vocabulary, check_text(prompt, "prompt"), options, frame=frame, device=run.device)
