"""A trained run, from Python: `run = weft.load("runs/x")`, then `run.generate(...)`, `run.score(...)`, `run.evaluate(...)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from weft.config import no_such
from weft.data.corpus import Corpus
from weft.data.grouped import filled
from weft.data.opening import read_opening
from weft.decode import generate as decoding
from weft.decode.generate import Continuation, Frame, Going
from weft.decode.options import GenerateOptions, chosen, too_long
from weft.errors import ConfigError, ModelError, UsageError
from weft.explain import views
from weft.explain.options import ExplainOptions
from weft.explain.view import View
from weft.metrics.items import Items, Score
from weft.metrics.language import Measured, language_scores
from weft.tasks.classification.predict import Labeller
from weft.tasks.lm.network import chosen_context
from weft.tasks.lm.objective import items
from weft.tasks.lm.scoring import BATCH, Context, nats_of, surprisal
from weft.tasks.masked_lm.predict import Filler
from weft.tasks.qa.predict import Reader
from weft.tasks.seq2seq.predict import Beside, Member, Translator, Watch, parameters, refuse
from weft.tasks.tagging.predict import Tagger
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer
from weft.train.device import pick_device
from weft.train.folder import RunFolder, open_folder
from weft.train.held import Files, HeldOut
from weft.train.settings import Settings, resolve

DEVICES = ("auto", "cpu", "cuda")
LM_WEIGHT = 0.3


class LineScore(NamedTuple):
    """A line under a model, in nats; the end token is among its tokens where the model reads lines."""

    text: str
    log_prob: float
    tokens: list[str]
    log_probs: list[float]

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens))) if self.tokens else float("nan")


def _told(watch: Callable[[int], None], before: int, lengths: Sequence[int], done: int) -> None:
    """How many tokens of texts of these lengths are scored, after so many positions, `before` of them before the texts."""
    watch(sum(min(max(0, done - before), length) for length in lengths))


class Run:
    """A run folder, read. Nothing in it is ever run as code."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: Tokenizer, device: torch.device) -> None:
        self.folder, self.settings, self.tokenizer, self.device = folder, settings, tokenizer, device

    @cached_property
    def model(self) -> Any:
        """The model itself: `start`, `step`, `score`, `loss`."""
        return self.settings.preset.family.load(self.settings, self.tokenizer, self.folder, self.device)

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
        return Frame(self.end, self.opening)

    @property
    def room(self) -> int | None:
        """How many tokens of a text the model can read, or predict; None: any number."""
        longest: int | None = self.model.longest
        return None if longest is None else longest - len(self.opening) + 1

    def context(self, text: str | None) -> Context:
        """The policy that is asked for, as this run follows it; None: `full`."""
        return chosen_context(self.settings, text)

    # ---- whole texts

    def evaluate(
        self,
        data: Files | None = None,
        *,
        context: str | None = None,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> list[Score]:
        """Exact scores over a whole text, with intervals: of `data`, or of the run's own test or validation data.

        `reading(bytes done, bytes in all)` and then `watch(tokens done, tokens in all)` are told of progress.
        """
        return self.measure(data, context=context, watch=watch, reading=reading)[0]

    def measure(
        self,
        data: Files | None = None,
        *,
        context: str | None = None,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> tuple[list[Score], Items]:
        """Scores, and what they were made from, line by line, or block by block of running text."""
        found = items(*self.nats(data, context=context, watch=watch, reading=reading))
        return language_scores(found, self.measured(context)), found

    def measured(self, context: str | None = None) -> Measured:
        """How a text is measured, for signatures."""
        return Measured(str(self.context(context)), "line" if self.lines else "block", self.tokenizer.hash)

    @torch.inference_mode()
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
        with TemporaryDirectory() as place:  # what was mapped stays when the file is gone
            corpus = HeldOut(self.folder, self.settings, self.tokenizer).corpus(data, Path(place), reading)
            return surprisal(self.model, corpus, policy, device=self.device, watch=watch), corpus

    # ---- lines

    def score(self, lines: str | Sequence[str], *, watch: Watch | None = None) -> list[LineScore]:
        """The log-probability of each line (a string is one), and of each of its tokens.

        `watch(tokens done, tokens in all)` is told of progress while there is something left to do.
        """
        read = [clean(line, f"line {number}") for number, line in enumerate([lines] if isinstance(lines, str) else lines, 1)]
        refuse(self.faults(read), lambda at: f"line {1 + at}")
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

    @torch.inference_mode()
    def _score(self, texts: list[list[int]], watch: Callable[[int], None]) -> list[list[float]]:
        width = max(map(len, texts))
        if width == 0:
            return [[] for _ in texts]
        tokens = torch.tensor([[*self.opening, *text, *[0] * (width - len(text))] for text in texts], device=self.device)
        before = len(self.opening) - 1  # targets that are none of the text's
        told = partial(_told, watch, before, [len(text) for text in texts])
        nats, _ = nats_of(self.model, tokens, None, told)
        # padding lies behind a row's last token, so what it would score is cut off
        return [row[before : before + len(text)] for row, text in zip((-nats).tolist(), texts, strict=True)]

    # ---- generation

    def generate(
        self,
        prompts: str | Sequence[str] = "",
        options: GenerateOptions | None = None,
        *,
        going: Going | None = None,
        **named: Any,
    ) -> list[list[Continuation]]:
        """Continuations of each prompt, a beam's best first; options as one object or by name: `generate("The", top_p=0.9)`.
        `going(tokens written, tokens at most)` is asked at each step of a beam; once it says no, what is found is given."""
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        read = [clean(text, f"prompt {number}") for number, text in enumerate(texts, 1)]
        given = chosen(GenerateOptions, options, named)
        return decoding.generate(self.model, self.tokenizer, read, given, frame=self.frame, device=self.device, going=going)

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

    def stream(self, prompt: str = "", options: GenerateOptions | None = None, **named: Any) -> Iterator[str]:
        """One continuation, piece by piece as it is found."""
        given = chosen(GenerateOptions, options, named)
        return decoding.stream(self.model, self.tokenizer, clean(prompt, "prompt"), given, frame=self.frame, device=self.device)

    def explain(self, text: str, what: str | None = None, options: ExplainOptions | None = None, **named: Any) -> View:
        """How a text is read and continued: data, pictures and words of one view; options as one object, or by name:
        `explain("The cat", "attribution", method="occlusion")`."""
        return views.explain(self, text, what, options, named)

    def info(self) -> Mapping[str, Any]:
        """What the run is: settings, sizes, how far it got."""
        return {
            "path": str(self.folder.path),
            "task": self.settings.task,
            "kind": self.settings.kind,
            "parameters": parameters(self.model),
            "vocabulary": self.tokenizer.size,
            "tokenizer": self.tokenizer.hash,
            "settings": self.settings.to_dict(),
        }


def _read(path: str | Path) -> tuple[RunFolder, Settings]:
    folder = open_folder(Path(path))
    try:
        return folder, resolve(folder.read_resolved(), base=folder.path)
    except ConfigError as error:
        raise ModelError(f"{folder.resolved}: is damaged, or of another version: {error}") from None


def _device(name: str) -> torch.device:
    if name not in DEVICES:
        raise UsageError(f"device: {no_such('device', name, DEVICES)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device: 'cuda' was asked for, but torch sees no GPU; use 'auto' or 'cpu'")
    return pick_device(name)


def _member(folder: RunFolder, settings: Settings, device: torch.device) -> Member:
    return Member(folder, settings, settings.material.load(folder), device)


Loaded = Run | Translator | Labeller | Tagger | Filler | Reader


def load(path: str | Path, *, device: str = "auto") -> Loaded:
    """The run in a folder that `weft train` wrote. Its files are checked; none of them is run. Its weights, which it may not
    have yet, are read when they are first needed."""
    place = _device(device)
    folder, settings = _read(path)
    if settings.task == "translate":
        return Translator([_member(folder, settings, place)], place)
    others: dict[str, type[Labeller | Tagger | Filler | Reader]] = {
        "classify": Labeller,
        "tag": Tagger,
        "masked-lm": Filler,
        "span": Reader,
    }
    kind: type[Run | Labeller | Tagger | Filler | Reader] = others.get(settings.task, Run)
    return kind(folder, settings, settings.material.load(folder), place)


R = TypeVar("R", bound=Loaded)


def ready(run: R) -> R:
    """A run that is about to be used: what is wrong with its weights, or with several together, is said now."""
    _ = run.model
    return run


INSTEAD: Mapping[str, str] = {
    "lm": "is a language model, which continues texts; use weft generate",
    "translate": "is a run of task 'translate', which writes outputs for sources; use weft predict",
    "masked-lm": "is a masked language model, which fills gaps; use weft fill",
    "classify": "is a classifier, which gives texts labels; use weft predict",
    "tag": "is a tagger, which gives words tags; use weft predict",
    "span": "is a reader, which answers questions about passages; use weft predict",
}


def as_language(run: Loaded) -> Run:
    """A run that must be a language model."""
    if not isinstance(run, Run):
        raise UsageError(f"{run.folder.path}: {INSTEAD[run.settings.task]}")
    return run


def as_translator(run: Loaded) -> Translator:
    """A run that must have sources and targets."""
    if not isinstance(run, Translator):
        raise UsageError(f"{run.folder.path}: {INSTEAD[run.settings.task]}")
    return run


def as_filler(run: Loaded) -> Filler:
    """A run that must be a masked language model."""
    if not isinstance(run, Filler):
        raise UsageError(f"{run.folder.path}: is a run of task {run.settings.task!r}; gaps are filled by one of 'masked-lm'")
    return run


def load_language(path: str | Path, *, device: str = "auto") -> Run:
    return as_language(load(path, device=device))


def load_translator(path: str | Path, *, device: str = "auto") -> Translator:
    return as_translator(load(path, device=device))


def ensemble(
    paths: Sequence[str | Path],
    *,
    weights: Sequence[float] | None = None,
    lm: str | Path | None = None,
    lm_weight: float = LM_WEIGHT,
    device: str = "auto",
) -> Translator:
    """Several translating runs as one: the weighted mean of their probabilities (equal weights unless given), and beside
    it `lm_weight` times the log-probability of a language model of the targets."""
    place = _device(device)
    members = []
    for path in paths:
        folder, settings = _read(path)
        if settings.task != "translate":
            raise UsageError(f"ensemble: {path} is a run of task {settings.task!r}, not of 'translate'")
        members.append(_member(folder, settings, place))
    if lm is None:
        return ready(Translator(members, place, weights=weights))
    if not 0 < lm_weight < math.inf:
        raise UsageError(f"--lm-weight: must be a number above 0, not {lm_weight:g}; without --lm the model chooses alone")
    helper = load(lm, device=device)
    if not isinstance(helper, Run) or not helper.lines:
        raise UsageError(f"--lm: {lm} must be a language model of lines (task = 'lm', data.read = 'lines')")
    return ready(Translator(members, place, weights=weights, lm=Beside(helper.folder, helper.model, lm_weight)))
