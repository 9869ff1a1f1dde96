"""What a classifier says of texts: predictions, scores, vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weft.errors import DataError, UsageError
from weft.metrics.items import Items
from weft.metrics.labels import Labelled, label_scores
from weft.runs.eval_data import held_source, none_known
from weft.tasks import embedding
from weft.tasks.classification.compare import observe
from weft.tasks.classification.judging import Judged, judged, targets, unseen
from weft.tasks.embedding import Embedded
from weft.tasks.faults import mark_faults, process_valid, read_texts
from weft.tasks.label_report import label_report
from weft.tasks.spec import Evaluation, Fault, Files, LabelOptions, Options, Progress, Watch, is_tuple_of_texts, phase
from weft.text.gate import many
from weft.text.labelled_tokens import LabelledTokens

if TYPE_CHECKING:
    from weft.runs.run import Run

SAID = 0.5  # of several labels, those of a larger probability are said
Texts = str | tuple[str, ...]


class Labelling(NamedTuple):
    """What a text is: its label, or labels, and the probability of each that there is, the most probable first."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    cut: bool = False  # it was longer than the model reads


class Classifies(Protocol):
    """What a classifier without its run can do: a network with its tokenizer, or a linear model of terms."""

    @property
    def longest(self) -> int | None: ...

    @property
    def temperature(self) -> float: ...

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray: ...

    def judge(self, texts: Sequence[tuple[str, ...]], watch: Watch | None = None) -> Judged: ...

    def log_probs(self, texts: Sequence[tuple[str, ...]], watch: Watch | None = None) -> np.ndarray: ...


class ClassifierReader:
    """A classifier that reads texts: what a run says of them."""

    def __init__(self, run: Run[Texts, Labelling]) -> None:
        self.run, self.folder, self.settings = run, run.folder, run.settings
        self.tokenizer: LabelledTokens = run.vocabulary

    @cached_property
    def model(self) -> Classifies:
        """What gives log-probabilities of labels of texts: a network with its tokenizer, or a model of terms."""
        if self.run.network is None:
            terms: Classifies = self.run.model
            return terms
        from weft.tasks.classification.objective import TextLabeller

        return TextLabeller(
            self.run.network, self.tokenizer.tokenizer, longest=self.settings.data.longest, device=self.run.device
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tokenizer.labels.names

    @property
    def columns(self) -> int:
        """How many texts an example has."""
        return len(self.settings.data.columns())

    def read(self, given: Any) -> tuple[str, ...] | Fault:
        """The texts of an input, as many as the model reads."""
        found = read_texts(given)
        if isinstance(found, Fault) or len(found) == self.columns:
            return found
        return Fault(f"has {many(len(found), 'text')}, but {self.folder.path} reads {self.columns}")

    def faults(self, rows: Sequence[tuple[str, ...]]) -> dict[int, str]:
        """Which texts are too long to be read, by their number from 0, and what to do: none where data.truncate lets them be
        cut."""
        if not rows or self.settings.data.truncate or self.model.longest is None:
            return {}
        lengths, longest = self.model.lengths(rows), self.model.longest
        cure = f"but {self.folder.path} reads at most {longest} and cuts nothing (data.truncate = false); shorten it"
        return {int(at): f"has {lengths[at]:,} tokens, {cure}" for at in np.flatnonzero(lengths > longest)}

    def predict(self, rows: Sequence[tuple[str, ...]], watch: Watch | None) -> list[Labelling]:
        """The labels of texts that can be read."""
        if not rows:
            return []
        found = self.model.judge(rows, watch)
        return [self._said(row, cut) for row, cut in zip(np.exp(found.log_probs), found.cut.tolist(), strict=True)]

    def _said(self, row: np.ndarray, cut: bool) -> Labelling:
        order = np.argsort(-row, kind="stable")
        shares = {self.labels[at]: float(row[at]) for at in order.tolist()}
        if self.settings.data.multi:
            return Labelling(tuple(name for name, share in shares.items() if share > SAID), shares, cut)
        return Labelling((self.labels[order[0]],), shares, cut)

    def evaluate(self, data: Files | None, *, strict: bool, watch: Watch | None) -> Evaluation:
        """Scores, and what they were made from, example by example."""
        source, several = held_source(self.folder, self.settings, data), bool(self.settings.data.multi)
        examples = list(source.records())
        found = [example.labels for example in examples]
        new = unseen(found, self.tokenizer.labels)
        if strict and new.any():
            at = int(np.flatnonzero(new)[0])
            name = next(name for name in found[at] if self.tokenizer.labels.index(name) is None)
            raise DataError(f"{source.place(at)}: the label {name!r} is not among those of {self.folder.path}")
        if all(self.tokenizer.labels.index(name) is None for names in found for name in names) and new.any():
            counts = Counter(chain.from_iterable(found))
            raise none_known(source, counts, self.labels, self.folder, what="labels", cure=source.seen.label_place())
        texts = [example.texts for example in examples]
        if faults := self.faults(texts):
            raise DataError(f"{source.place(min(faults))}: {faults[min(faults)]}")
        log_probs = self.model.log_probs(texts, watch)
        items = judged(log_probs, targets(found, self.tokenizer.labels, several=several), new, several=several)
        labelled = Labelled(self.tokenizer.labels.hash, several, temperature=self.model.temperature)
        names = Counter(name for name in chain.from_iterable(found) if self.tokenizer.labels.index(name) is None)
        report = label_report(self.labels, items, several=several)
        kept = replace(items, outputs=self._outputs(items))
        observed = partial(observe, self.run, examples, kept)
        scores, notes = label_scores(items, labelled), source.seen.skipped_notes()
        return Evaluation(scores, kept, observed, "texts/s", len(examples), report, names, notes)

    def _outputs(self, items: Items) -> list[str]:
        """The labels that were said of each example, with ", " between."""
        said = items.statistics["said"] > 0
        return [", ".join(name for name, hit in zip(self.labels, row, strict=True) if hit) for row in said.tolist()]


def is_single(run: Run[Texts, Labelling], given: object) -> bool:
    """A string is one text; for runs that read two, a tuple of two strings is one input."""
    return isinstance(given, str) or (run.reader.columns > 1 and is_tuple_of_texts(given))


def predict(
    run: Run[Texts, Labelling], texts: Sequence[Texts], options: Options, progress: Progress | None
) -> list[Labelling | Fault]:
    reader: ClassifierReader = run.reader
    rows = mark_faults([reader.read(one) for one in texts], reader.faults)
    return process_valid(rows, lambda valid: reader.predict(valid, phase(progress, "predicting")))


def evaluate(run: Run[Texts, Labelling], data: Files | None, options: LabelOptions, progress: Progress | None) -> Evaluation:
    reader: ClassifierReader = run.reader
    return reader.evaluate(data, strict=options.strict, watch=phase(progress, "evaluating"))


def embed(run: Run[Texts, Labelling], texts: Sequence[str], pool: str, progress: Progress | None) -> Embedded:
    embedding.check_pool(pool)
    if run.network is None:
        raise UsageError(f"{run.folder.path}: is a {run.settings.kind} over terms, which has no encoder of texts")
    tokenizer, longest = run.vocabulary.tokenizer, run.settings.data.longest
    return embedding.embed_texts(run, tokenizer, texts, pool, longest=longest, progress=progress)
