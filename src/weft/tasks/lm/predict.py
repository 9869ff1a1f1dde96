"""What a language model says: scores of texts, continuations of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from weft.decode.options import GenerationConfig, too_long
from weft.errors import DataError
from weft.metrics.lm import EvaluationSetup, language_scores
from weft.runs.eval_data import EvalData
from weft.tasks.invalid_inputs import mark_faults, process_valid, read_text
from weft.tasks.lm.compare import observe
from weft.tasks.lm.contexts import Context, chosen_context
from weft.tasks.lm.scoring import BATCH, items, reading, surprisal, token_nll
from weft.tasks.spec import Evaluation, Fault, Files, Options, Progress, ProgressCallback, phase
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    import torch

    from weft.decode.generate import Continuation, ContinueCallback, Frame
    from weft.runs.run import Run


class LanguageOptions(Options):
    """How a text is scored by a language model."""

    context: str | None = None  # the context policy; None: full


class TextScore(NamedTuple):
    """A line under a model, in nats; the end token is among its tokens where the model reads lines."""

    text: str
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens))) if self.tokens else float("nan")


def _report_scored(progress: Callable[[int], None], before: int, lengths: Sequence[int], done: int) -> None:
    """How many tokens of texts of these lengths are scored, after so many positions, `before` of them before the texts."""
    progress(sum(min(max(0, done - before), length) for length in lengths))


class LanguageReader:
    """A language model that reads texts: what they come after, and what ends them."""

    def __init__(self, run: Run[str, None]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer: Tokenizer = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `start`, `step`, `score`, `loss`."""
        return self.run.model

    @property
    def lines(self) -> bool:
        return bool(self.config.data.read_as == "lines")

    @property
    def end(self) -> int | None:
        """The token that ends a text; running text has none."""
        return self.tokenizer.eos_id if self.lines else None

    @cached_property
    def opening(self) -> list[int]:
        """The tokens that a text by itself comes after: <s> where the run reads lines, else what its training text shows
        before a text begins, such as a newline."""
        return [self.tokenizer.bos_id] if self.lines else read_bos(self.directory.path, self.tokenizer)

    @property
    def frame(self) -> Frame:
        """What a text stands between."""
        from weft.decode.generate import Frame

        return Frame(self.end, self.opening)

    @property
    def room(self) -> int | None:
        """How many tokens of a text the model can read, or predict; None: any number."""
        max_length: int | None = self.model.max_positions
        return None if max_length is None else max_length - len(self.opening) + 1

    def context(self, text: str | None) -> Context:
        """The policy that is asked for, as this run follows it; None: `full`."""
        return chosen_context(self.config, text)

    @property
    def device(self) -> torch.device | None:
        """Where a network computes; None: the model counts, and reads arrays."""
        return self.run.device if self.config.preset.estimator.by_steps else None

    def _inference(self) -> AbstractContextManager[Any]:
        """No gradients are recorded, where there are any."""
        if self.device is None:
            return nullcontext()
        import torch

        return torch.inference_mode()

    # ---- whole texts

    def measured(self, context: str | None = None) -> EvaluationSetup:
        """How a text is measured, for signatures."""
        return EvaluationSetup(str(self.context(context)), "line" if self.lines else "block", self.tokenizer.hash)

    def nats(
        self,
        data: Files | None = None,
        *,
        context: str | None = None,
        progress: ProgressCallback | None = None,
        reading: ProgressCallback | None = None,
    ) -> tuple[NDArray[np.float32], Corpus]:
        """Nats of every token of a text, (N,), and its tokens."""
        policy = self.context(context)
        with TemporaryDirectory() as place:  # what was mapped stays when the file is gone
            corpus = EvalData(self.directory, self.config, self.tokenizer).corpus(data, Path(place), reading)
            with self._inference():
                return surprisal(self.model, corpus, policy, device=self.device, progress=progress), corpus

    # ---- lines

    def score(self, lines: Sequence[str], *, progress: ProgressCallback | None = None) -> list[TextScore]:
        """The log-probability of each line, and of each of its tokens.

        `watch(tokens done, tokens in all)` is told of progress while there is something left to do.
        """
        read = [check_text(line, f"line {number}") for number, line in enumerate(lines, 1)]
        if problems := self.invalid_inputs(read):
            raise DataError(f"line {1 + min(problems)}", f"{problems[min(problems)]}")
        end = [] if self.end is None else [self.end]
        texts = [[*ids.tolist(), *end] for ids in self.tokenizer.encode_batch(read)]
        order = np.argsort([len(text) for text in texts], kind="stable")
        # the opening is read, too
        edges = batch_edges(np.array([len(texts[index]) + len(self.opening) for index in order], np.int64), BATCH)
        found: dict[int, list[float]] = {}
        done, total = 0, sum(map(len, texts))

        def within(part: int) -> None:
            if progress is not None and done + part:
                progress(done + part, total)

        for low, high in pairwise(edges.tolist()):
            within(0)
            batch = [texts[index] for index in order[low:high]]
            found |= zip(order[low:high].tolist(), self._score(batch, within), strict=True)
            done += sum(map(len, batch))
        return [
            TextScore(
                line, float(sum(found[index])), [self.tokenizer.token_text(token) for token in texts[index]], found[index]
            )
            for index, line in enumerate(read)
        ]

    def invalid_inputs(self, lines: Sequence[str]) -> dict[int, str]:
        """Which lines can't be scored, by their number from 0, and why: some models have positions up to a number only."""
        room = self.room
        if room is None:
            return {}
        lengths = self.tokenizer.encode_concatenated(lines)[1] + int(self.lines)
        fix = f"but {self.directory.path} reads at most {room}; shorten it"
        return {int(at): f"has {lengths[at]:,} tokens, {fix}" for at in np.flatnonzero(lengths > room)}

    def _score(self, texts: list[list[int]], progress: Callable[[int], None]) -> list[list[float]]:
        width = max(map(len, texts))
        if width == 0:
            return [[] for _ in texts]
        tokens = np.array([[*self.opening, *text, *[0] * (width - len(text))] for text in texts], np.int64)
        before = len(self.opening) - 1  # targets that are none of the text's
        report = partial(_report_scored, progress, before, [len(text) for text in texts])
        with self._inference():
            nats, _ = token_nll(reading(self.model, self.device), tokens, None, report)
        # padding lies behind a row's last token, so what it would score is cut off
        return [row[before : before + len(text)] for row, text in zip((-nats).tolist(), texts, strict=True)]

    # ---- generation

    def unknown(self, prompts: Sequence[str]) -> list[str]:
        """What in the prompts has no token, one after another: the model reads <unk> there."""
        tokenizer = self.tokenizer
        odd = [text for text, ids in zip(prompts, tokenizer.encode_batch(prompts), strict=True) if tokenizer.unk_id in ids]
        return tokenizer.count_unknown(odd)

    def faults_of_prompts(self, prompts: Sequence[str], options: GenerationConfig) -> dict[int, str]:
        """Which prompts can't be continued by as much as is asked for, by their number from 0, and why."""
        lengths = (self.tokenizer.encode_concatenated(prompts)[1] + len(self.opening)).tolist()
        found = {at: too_long(self.model.max_positions, length, options.max_new_tokens) for at, length in enumerate(lengths)}
        return {at: problem for at, problem in found.items() if problem is not None}


def _texts(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def prompt(run: Run[str, None], text: str) -> list[int]:
    """The tokens of a text, and before them what it comes after."""
    return [*run.reader.opening, *run.vocabulary.encode(text).tolist()]


def never(run: Run[str, None]) -> list[int]:
    """Tokens that no continuation has: special tokens, but for the one that ends it."""
    endless = [Tokenizer.eos_id] if run.reader.end is None else []
    return [Tokenizer.unk_id, Tokenizer.bos_id, *endless]


def evaluate(run: Run[str, None], data: Files | None, options: LanguageOptions, progress: Progress | None) -> Evaluation:
    """Exact scores over a whole text, line by line, or block by block of running text."""
    reader: LanguageReader = run.reader
    nats, corpus = reader.nats(
        data, context=options.context, progress=phase(progress, "evaluating"), reading=phase(progress, "tokenising")
    )
    found = items(nats, corpus)
    scores = language_scores(found, reader.measured(options.context))
    return Evaluation(scores, found, partial(observe, run, nats, corpus), "tokens/s scored", len(nats))


def score(
    run: Run[str, None], lines: str | Sequence[str], truncate: bool, progress: Progress | None
) -> list[TextScore | Fault]:
    """The log-probability of each line (a string is one), and of each of its tokens."""
    reader: LanguageReader = run.reader
    read = mark_faults([read_text(line) for line in _texts(lines)], reader.invalid_inputs)
    return process_valid(read, lambda valid: reader.score(valid, progress=phase(progress, "scoring")))


def unknown(run: Run[str, None], prompts: Sequence[str]) -> list[str]:
    reader: LanguageReader = run.reader
    return reader.unknown(prompts)


def generate(
    run: Run[str, None], prompts: str | Sequence[str], options: GenerationConfig, should_continue: ContinueCallback | None
) -> list[list[Continuation]]:
    """Continuations of each prompt (a string is one), a beam's best first."""
    from weft.decode import generate as decoding

    read = [check_text(text, f"prompt {number}") for number, text in enumerate(_texts(prompts), 1)]
    frame = run.reader.frame
    return decoding.generate(
        run.model, run.vocabulary, read, options, frame=frame, device=run.device, should_continue=should_continue
    )


def stream(run: Run[str, None], prompt: str, options: GenerationConfig) -> Iterator[str]:
    """One continuation, piece by piece as it is found."""
    from weft.decode import generate as decoding

    frame = run.reader.frame
    return decoding.stream(run.model, run.vocabulary, check_text(prompt, "prompt"), options, frame=frame, device=run.device)
