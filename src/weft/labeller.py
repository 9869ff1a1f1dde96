"""A trained classifier, from Python: `run = weft.load("runs/x")`, then `run.predict(...)`, `run.evaluate(...)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.errors import DataError, UsageError
from weft.explain import views
from weft.explain.options import ExplainOptions
from weft.explain.view import View
from weft.metrics.items import Items, Score
from weft.metrics.labels import Labelled, label_scores
from weft.tasks import embedding
from weft.tasks.classification import judged
from weft.tasks.embedding import Embedded
from weft.tasks.objective import Watch
from weft.text.gate import clean, many
from weft.text.labelled_tokens import LabelledTokens
from weft.train.classification import targets, unseen
from weft.train.folder import RunFolder
from weft.train.held import held_source, none_known
from weft.train.settings import Settings

SAID = 0.5  # of several labels, those of a larger probability are said
Texts = str | tuple[str, ...]


class Labelling(NamedTuple):
    """What a text is: its label, or labels, and the probability of each that there is, the most probable first."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    cut: bool = False  # it was longer than the model reads


class Labeller:
    """A run that gives texts a label, or several."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: LabelledTokens, device: torch.device) -> None:
        self.folder, self.settings, self.tokenizer, self.device = folder, settings, tokenizer, device

    @cached_property
    def model(self) -> Any:
        """What says log-probabilities of labels of texts: `log_probs`."""
        return self.settings.preset.family.load(self.settings, self.tokenizer, self.folder, self.device)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tokenizer.labels.names

    @property
    def columns(self) -> int:
        """How many texts an example has."""
        return len(self.settings.data.columns())

    def _texts(self, texts: Sequence[Texts]) -> list[tuple[str, ...]]:
        read = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
        for number, row in enumerate(read, 1):
            if len(row) != self.columns:
                raise DataError(f"line {number}: has {many(len(row), 'text')}, but {self.folder.path} reads {self.columns}")
        return [tuple(clean(text, f"line {number}") for text in row) for number, row in enumerate(read, 1)]

    def _several(self, texts: Texts | Sequence[Texts]) -> Sequence[Any]:
        pair = self.columns > 1 and isinstance(texts, tuple) and all(isinstance(text, str) for text in texts)
        return [texts] if isinstance(texts, str) or pair else list(texts)

    def faults(self, texts: Sequence[Texts]) -> dict[int, str]:
        """Which texts are too long to be read, by their number from 0, and what to do: none where data.truncate lets them be
        cut."""
        rows = self._texts(texts)
        if not rows or self.settings.data.truncate or self.model.longest is None:
            return {}
        lengths, longest = self.model.lengths(rows), self.model.longest
        cure = f"but {self.folder.path} reads at most {longest} and cuts nothing (data.truncate = false); shorten it"
        return {int(at): f"has {lengths[at]:,} tokens, {cure}" for at in np.flatnonzero(lengths > longest)}

    def predict(self, texts: Texts | Sequence[Texts], *, watch: Watch | None = None) -> list[Labelling]:
        """What each text is (a string is one; of runs that read two texts, a tuple of two strings is)."""
        rows = self._texts(self._several(texts))
        if not rows:
            return []
        if faults := self.faults(rows):
            raise DataError(f"line {min(faults) + 1}: {faults[min(faults)]}")
        found = self.model.judge(rows, watch)
        return [self._said(row, cut) for row, cut in zip(np.exp(found.log_probs), found.cut.tolist(), strict=True)]

    def _said(self, row: np.ndarray, cut: bool) -> Labelling:
        order = np.argsort(-row, kind="stable")
        shares = {self.labels[at]: float(row[at]) for at in order.tolist()}
        if self.settings.data.multi:
            return Labelling(tuple(name for name, share in shares.items() if share > SAID), shares, cut)
        return Labelling((self.labels[order[0]],), shares, cut)

    def embed(self, texts: Sequence[str], *, pool: str = "mean", watch: Watch | None = None) -> np.ndarray:
        """float32 (N, D): a vector for each text, the mean over its positions or what stands at <s>. A text longer than the
        model reads is cut; `embedded` says which were."""
        return self.embedded(texts, pool=pool, watch=watch).vectors

    def embedded(self, texts: Sequence[str], *, pool: str = "mean", watch: Watch | None = None) -> Embedded:
        """The vectors of `embed`, and which texts were cut."""
        embedding.check_pool(pool)
        encoder = getattr(self.model, "encoder", None)
        if encoder is None:
            raise UsageError(f"{self.folder.path}: is a {self.settings.kind} over terms, which has no encoder of texts")
        read = [clean(text, f"line {number}") for number, text in enumerate(texts, 1)]
        corpus, cut = embedding.read(self.tokenizer.tokenizer, read, self.settings.data.longest)
        return Embedded(embedding.embed(encoder, corpus, pool=pool, device=self.device, watch=watch), cut)

    def evaluate(self, data: Any = None, *, strict: bool = False, watch: Watch | None = None) -> list[Score]:
        """Scores with intervals, of `data` (a file, several, or a folder), or of the run's own test or validation data."""
        return self.measure(data, strict=strict, watch=watch)[0]

    def measure(self, data: Any = None, *, strict: bool = False, watch: Watch | None = None) -> tuple[list[Score], Items]:
        """Scores, and what they were made from, example by example."""
        source, several = held_source(self.folder, self.settings, data), bool(self.settings.data.multi)
        examples = list(source.examples())
        found = [example.labels for example in examples]
        new = unseen(found, self.tokenizer.labels)
        if strict and new.any():
            at = int(np.flatnonzero(new)[0])
            name = next(name for name in found[at] if self.tokenizer.labels.index(name) is None)
            raise DataError(f"{source.place(at)}: the label {name!r} is not among those of {self.folder.path}")
        if all(self.tokenizer.labels.index(name) is None for names in found for name in names) and new.any():
            counts = Counter(chain.from_iterable(found))
            raise none_known(source, counts, self.labels, self.folder, what="labels", cure=source.label_place())
        texts = [example.texts for example in examples]
        if faults := self.faults(texts):
            raise DataError(f"{source.place(min(faults))}: {faults[min(faults)]}")
        log_probs = self.model.log_probs(texts, watch)
        items = judged(log_probs, targets(found, self.tokenizer.labels, several=several), new, several=several)
        labelled = Labelled(self.tokenizer.labels.hash, several, temperature=self.model.temperature)
        return label_scores(items, labelled), replace(items, outputs=self._outputs(items))

    def _outputs(self, items: Items) -> list[str]:
        """The labels that were said of each example, with ", " between."""
        said = items.statistics["said"] > 0
        return [", ".join(name for name, hit in zip(self.labels, row, strict=True) if hit) for row in said.tolist()]

    def unseen(self, data: Any = None) -> Counter[str]:
        """How often each label of the data occurs that training never saw."""
        names = chain.from_iterable(held_source(self.folder, self.settings, data).labels())
        return Counter(name for name in names if self.tokenizer.labels.index(name) is None)

    def explain(self, text: str, what: str | None = None, options: ExplainOptions | None = None, **named: Any) -> View:
        """How a text (of two, with a tab between them) gets its label: data, pictures and words of one view; options as one
        object, or by name:
        `explain("too slow", "attribution", method="occlusion")`."""
        return views.explain(self, text, what, options, named)

    def info(self) -> Mapping[str, Any]:
        """What the run is: settings, sizes, how far it got."""
        return {
            "path": str(self.folder.path),
            "task": self.settings.task,
            "kind": self.settings.kind,
            "parameters": self.model.parameters,
            "labels": list(self.labels),
            "tokenizer": self.tokenizer.hash,
            "settings": self.settings.to_dict(),
        }
