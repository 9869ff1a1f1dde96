"""A trained tagger, from Python: `run = weft.load("runs/x")`, then `run.predict(...)`, `run.evaluate(...)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.errors import DataError
from weft.explain import views
from weft.explain.options import ExplainOptions
from weft.explain.view import View
from weft.metrics.items import Items, Score
from weft.metrics.spans import Span, Tagged, scheme_of, spans, tag_items, tag_scores, types_of
from weft.tasks import embedding
from weft.tasks.embedding import Embedded
from weft.tasks.task import Watch
from weft.text.gate import clean
from weft.text.labelled_tokens import LabelledTokens
from weft.train.folder import RunFolder
from weft.train.held import held_source, none_known, own_or_gone
from weft.train.settings import Settings

Sentence = str | Sequence[str]


class Tagging(NamedTuple):
    """A sentence, a tag for each of its words, and the spans that the tags mark."""

    words: list[str]
    tags: list[str]
    spans: list[Span]


def in_line(tags: Sequence[str]) -> str:
    """The tags of a sentence with blanks between, as many as it has words: those inside a tag are underscores."""
    return " ".join("_".join(tag.split()) for tag in tags)


class Tagger:
    """A run that gives each word of a sentence a tag."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: LabelledTokens, device: torch.device) -> None:
        self.folder, self.settings, self.tokenizer, self.device = folder, settings, tokenizer, device

    @cached_property
    def model(self) -> Any:
        """What tags words: `tag`."""
        return self.settings.preset.family.load(self.settings, self.tokenizer, self.folder, self.device)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tokenizer.labels.names

    def _words(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        return [
            clean(one, f"line {at}").split() if isinstance(one, str) else [clean(word, f"line {at}") for word in one]
            for at, one in enumerate(sentences, 1)
        ]

    def _long(self, sentences: Sequence[Sequence[str]]) -> dict[int, str]:
        longest = self.model.longest
        if longest is None:
            return {}
        lengths = self.model.lengths(sentences)
        cure = f"but {self.folder.path} reads at most {longest}; split it"
        return {int(at): f"has {lengths[at]:,} tokens, {cure}" for at in np.flatnonzero(lengths > longest)}

    def _refuse(self, faults: Mapping[int, str], place: Callable[[int], str]) -> None:
        if faults:
            raise DataError(f"{place(min(faults))}: {faults[min(faults)]}")

    def faults(self, sentences: Sequence[Sentence]) -> dict[int, str]:
        """Which sentences can't be tagged, by their number from 0, and why: some models have positions up to a number only."""
        return self._long(self._words(sentences))

    def predict(self, sentences: Sentence | Sequence[Sentence], *, watch: Watch | None = None) -> list[Tagging]:
        """Each sentence tagged: a string is one, and its words are what white space separates; or a list of words."""
        read = self._words([sentences] if isinstance(sentences, str) else sentences)
        self._refuse(self._long(read), lambda at: f"line {at + 1}")
        marks = scheme_of(self.labels) is not None
        return [
            Tagging(words, tags, sorted(spans(tags), key=lambda span: span.start) if marks else [])
            for words, tags in zip(read, self.model.tag(read, watch), strict=True)
        ]

    def embed(self, sentences: Sequence[Sentence], *, pool: str = "mean", watch: Watch | None = None) -> np.ndarray:
        """float32 (N, D): a vector for each sentence, the mean over its positions or what stands at <s>. One longer than the
        model reads loses its last words; `embedded` says which did."""
        return self.embedded(sentences, pool=pool, watch=watch).vectors

    def embedded(self, sentences: Sequence[Sentence], *, pool: str = "mean", watch: Watch | None = None) -> Embedded:
        """The vectors of `embed`, and which sentences were cut."""
        embedding.check_pool(pool)
        read = self._words(sentences)
        long = self._long(read)
        for at in long:
            read[at] = embedding.first_words(self.tokenizer.tokenizer, read[at], self.model.longest)
        cut = np.zeros(len(read), dtype=bool)
        cut[list(long)] = True
        data = self.model.sentences(read)
        return Embedded(embedding.embed_words(self.model.model.encoder, data, pool=pool, device=self.device, watch=watch), cut)

    def evaluate(self, data: Any = None, *, strict: bool = False, watch: Watch | None = None) -> list[Score]:
        """Scores with intervals, of `data` (a file, or several), or of the run's own test or validation data."""
        return self.measure(data, strict=strict, watch=watch)[0]

    def measure(self, data: Any = None, *, strict: bool = False, watch: Watch | None = None) -> tuple[list[Score], Items]:
        """Scores, and what they were made from, sentence by sentence."""
        source = held_source(self.folder, self.settings, data)
        given = list(source.sentences())
        if strict:
            self._refuse_unseen(source, given)
        counts = Counter(tag for one in given for tag in one.tags)
        if all(self.tokenizer.labels.index(tag) is None for tag in counts):
            cure = f"{'; '.join(source.seen.files.notes)}; set data.tag for another"
            raise none_known(source, counts, self.labels, self.folder, what="tags", cure=cure)
        self._refuse(self._long([one.words for one in given]), source.place)
        said = self.model.tag([one.words for one in given], watch)
        known = self._known(given)
        scheme = scheme_of(self.labels)
        types = types_of(self.labels) if scheme else ()
        items = tag_items(said, [one.tags for one in given], np.arange(len(given)), known=known, types=types)
        return tag_scores(items, Tagged(self.tokenizer.labels.hash, scheme)), replace(items, outputs=list(map(in_line, said)))

    def _refuse_unseen(self, source: Any, given: Sequence[Any]) -> None:
        for at, sentence in enumerate(given):
            for tag in sentence.tags:
                if self.tokenizer.labels.index(tag) is None:
                    raise DataError(f"{source.place(at)}: the tag {tag!r} is not among those of {self.folder.path}")

    def _known(self, given: Sequence[Any]) -> list[np.ndarray] | None:
        """Of each word, whether training had it; None where the training text is not there any more."""
        train = own_or_gone(self.folder, self.settings, "train")
        if train is None:
            return None
        seen = set(train.words().texts())
        return [np.array([word in seen for word in one.words], dtype=bool) for one in given]

    def gold_tags(self, data: Any = None) -> list[list[str]]:
        """The right tags of each sentence, spelled as `measure` spells its outputs: blanks inside a tag are underscores."""
        given = held_source(self.folder, self.settings, data).sentences()
        return [in_line(one.tags).split() for one in given]

    def unseen(self, data: Any = None) -> Counter[str]:
        """How often each tag of the data occurs that training never saw."""
        return Counter(
            tag for tag in held_source(self.folder, self.settings, data).tags() if self.tokenizer.labels.index(tag) is None
        )

    def explain(self, text: str, what: str | None = None, options: ExplainOptions | None = None, **named: Any) -> View:
        """How the words of a sentence get their tags: data, pictures and words of one view; options as one object, or by name:
        `explain("in New York", "attribution", method="occlusion")`."""
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
