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

from weft.data.corpus import Corpus
from weft.data.grouped import filled
from weft.data.opening import read_opening
from weft.decode.options import GenerateOptions, too_long
from weft.errors import DataError
from weft.metrics.language import Measured, language_scores
from weft.runs.eval_data import HeldOut
from weft.tasks.faults import mark_faults, process_valid, read_text
from weft.tasks.lm.compare import observe
from weft.tasks.lm.contexts import Context, chosen_context
from weft.tasks.lm.scoring import BATCH, items, nats_of, reading, surprisal
from weft.tasks.spec import Evaluation, Fault, Files, Options, Progress, Watch, phase
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    import torch

    from weft.decode.generate import Continuation, Frame, Going
    from weft.runs.run import Run


class LanguageOptions(Options):
    """How a text is scored by a language model."""

    context: str | None = None  # the context policy; None: full


class LineScore(NamedTuple):
    """A line under a model, in nats; the end token is among its tokens where the model reads lines."""

    text: str
    log_prob: float
    tokens: list[str]
    log_probs: list[float]

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens))) if self.tokens else float("nan")


def _report_scored(watch: Callable[[int], None], before: int, lengths: Sequence[int], done: int) -> None:
    """How many tokens of texts of these lengths are scored, after so many positions, `before` of them before the texts."""
    watch(sum(min(max(0, done - before), length) for length in lengths))


class LanguageReader:
    """A language model that reads texts: what they come after, and what ends them."""

    def __init__(self, run: Run[str, None]) -> None:
        self.run, self.folder, self.settings = run, run.folder, run.settings
        self.tokenizer: Tokenizer = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `start`, `step`, `score`, `loss`."""
        return self.run.model

    @property
    def lines(self) -> bool:
        return bool(self.settings.data.read == "lines")

    @property
    def end(self) -> int | None:
        """The token that ends a text; running text has none."""
        return self.tokenizer.end if self.lines else None

    @cached_property
    def opening(self) -> list[int]:
        """The tokens that a text by itself comes after: <s> where the run reads lines, else what its training text shows
        before a text begins, such as a newline."""
        return [self.tokenizer.begin] if self.lines else read_opening(self.folder.path, self.tokenizer)

    @property
    def frame(self) -> Frame:
        """What a text stands between."""
        from weft.decode.generate import Frame

        return Frame(self.end, self.opening)

    @property
    def room(self) -> int | None:
        """How many tokens of a text the model can read, or predict; None: any number."""
        longest: int | None = self.model.longest
        return None if longest is None else longest - len(self.opening) + 1

    def context(self, text: str | None) -> Context:
        """The policy that is asked for, as this run follows it; None: `full`."""
        return chosen_context(self.settings, text)

    @property
    def device(self) -> torch.device | None:
        """Where a network computes; None: the model counts, and reads arrays."""
        return None if self.run.network is None else self.run.device

    def _inference(self) -> AbstractContextManager[Any]:
        """No gradients are recorded, where there are any."""
        if self.device is None:
            return nullcontext()
        import torch

        return torch.inference_mode()

    # ---- whole texts

    def measured(self, context: str | None = None) -> Measured:
        """How a text is measured, for signatures."""
        return Measured(str(self.context(context)), "line" if self.lines else "block", self.tokenizer.hash)

    def nats(
        self,
        data: Files | None = None,
        *,
        context: str | None = None,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> tuple[NDArray[np.float32], Corpus]:
        """Nats of every token of a text, (N,), and its tokens."""
        policy = self.context(context)
        with TemporaryDirectory() as place, self._inference():  # what was mapped stays when the file is gone
            corpus = HeldOut(self.folder, self.settings, self.tokenizer).corpus(data, Path(place), reading)
            return surprisal(self.model, corpus, policy, device=self.device, watch=watch), corpus

    # ---- lines

    def score(self, lines: Sequence[str], *, watch: Watch | None = None) -> list[LineScore]:
        """The log-probability of each line, and of each of its tokens.

        `watch(tokens done, tokens in all)` is told of progress while there is something left to do.
        """
        read = [clean(line, f"line {number}") for number, line in enumerate(lines, 1)]
        if faults := self.faults(read):
            raise DataError(f"line {1 + min(faults)}: {faults[min(faults)]}")
        end = [] if self.end is None else [self.end]
        texts = [[*ids.tolist(), *end] for ids in self.tokenizer.encode_batch(read)]
        order = np.argsort([len(text) for text in texts], kind="stable")
        # the opening is read, too
        edges = filled(np.array([len(texts[index]) + len(self.opening) for index in order], np.int64), BATCH)
        found: dict[int, list[float]] = {}
        done, total = 0, sum(map(len, texts))

        def within(part: int) -> None:
            if watch is not None and done + part:
                watch(done + part, total)

        for low, high in pairwise(edges.tolist()):
            within(0)
            batch = [texts[index] for index in order[low:high]]
            found |= zip(order[low:high].tolist(), self._score(batch, within), strict=True)
            done += sum(map(len, batch))
        return [
            LineScore(line, float(sum(found[index])), [self.tokenizer.show(token) for token in texts[index]], found[index])
            for index, line in enumerate(read)
        ]

    def faults(self, lines: Sequence[str]) -> dict[int, str]:
        """Which lines can't be scored, by their number from 0, and why: some models have positions up to a number only."""
        room = self.room
        if room is None:
            return {}
        lengths = self.tokenizer.encode_flat(lines)[1] + int(self.lines)
        cure = f"but {self.folder.path} reads at most {room}; shorten it"
        return {int(at): f"has {lengths[at]:,} tokens, {cure}" for at in np.flatnonzero(lengths > room)}

    def _score(self, texts: list[list[int]], watch: Callable[[int], None]) -> list[list[float]]:
        width = max(map(len, texts))
        if width == 0:
            return [[] for _ in texts]
        tokens = np.array([[*self.opening, *text, *[0] * (width - len(text))] for text in texts], np.int64)
        before = len(self.opening) - 1  # targets that are none of the text's
        report = partial(_report_scored, watch, before, [len(text) for text in texts])
        with self._inference():
            nats, _ = nats_of(reading(self.model, self.device), tokens, None, report)
        # padding lies behind a row's last token, so what it would score is cut off
        return [row[before : before + len(text)] for row, text in zip((-nats).tolist(), texts, strict=True)]

    # ---- generation

    def unknown(self, prompts: Sequence[str]) -> list[str]:
        """What in the prompts has no token, one after another: the model reads <unk> there."""
        tokenizer = self.tokenizer
        odd = [text for text, ids in zip(prompts, tokenizer.encode_batch(prompts), strict=True) if tokenizer.unk in ids]
        return tokenizer.unknown(odd)

    def faults_of_prompts(self, prompts: Sequence[str], options: GenerateOptions) -> dict[int, str]:
        """Which prompts can't be continued by as much as is asked for, by their number from 0, and why."""
        lengths = (self.tokenizer.encode_flat(prompts)[1] + len(self.opening)).tolist()
        found = {at: too_long(self.model.longest, length, options.length) for at, length in enumerate(lengths)}
        return {at: fault for at, fault in found.items() if fault is not None}


def _texts(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def prompt(run: Run[str, None], text: str) -> list[int]:
    """The tokens of a text, and before them what it comes after."""
    return [*run.reader.opening, *run.vocabulary.encode(text).tolist()]


def never(run: Run[str, None]) -> list[int]:
    """Tokens that no continuation has: special tokens, but for the one that ends it."""
    endless = [Tokenizer.end] if run.reader.end is None else []
    return [Tokenizer.unk, Tokenizer.begin, *endless]


def evaluate(run: Run[str, None], data: Files | None, options: LanguageOptions, progress: Progress | None) -> Evaluation:
    """Exact scores over a whole text, line by line, or block by block of running text."""
    reader: LanguageReader = run.reader
    nats, corpus = reader.nats(
        data, context=options.context, watch=phase(progress, "evaluating"), reading=phase(progress, "tokenising")
    )
    found = items(nats, corpus)
    scores = language_scores(found, reader.measured(options.context))
    return Evaluation(scores, found, partial(observe, run, nats, corpus), "tokens/s scored", len(nats))


def score(
    run: Run[str, None], lines: str | Sequence[str], truncate: bool, progress: Progress | None
) -> list[LineScore | Fault]:
    """The log-probability of each line (a string is one), and of each of its tokens."""
    reader: LanguageReader = run.reader
    read = mark_faults([read_text(line) for line in _texts(lines)], reader.faults)
    return process_valid(read, lambda valid: reader.score(valid, watch=phase(progress, "scoring")))


def unknown(run: Run[str, None], prompts: Sequence[str]) -> list[str]:
    reader: LanguageReader = run.reader
    return reader.unknown(prompts)


def generate(
    run: Run[str, None], prompts: str | Sequence[str], options: GenerateOptions, going: Going | None
) -> list[list[Continuation]]:
    """Continuations of each prompt (a string is one), a beam's best first."""
    from weft.decode import generate as decoding

    read = [clean(text, f"prompt {number}") for number, text in enumerate(_texts(prompts), 1)]
    frame = run.reader.frame
    return decoding.generate(run.model, run.vocabulary, read, options, frame=frame, device=run.device, going=going)


def stream(run: Run[str, None], prompt: str, options: GenerateOptions) -> Iterator[str]:
    """One continuation, piece by piece as it is found."""
    from weft.decode import generate as decoding

    frame = run.reader.frame
    return decoding.stream(run.model, run.vocabulary, clean(prompt, "prompt"), options, frame=frame, device=run.device)
