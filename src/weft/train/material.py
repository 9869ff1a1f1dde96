"""What a run is trained on: its text or pairs as tokens on disk, and the tokenizers that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import numpy as np

from weft import files
from weft.config import OneOf, Table
from weft.data.corpus import Corpus, write_corpus
from weft.data.labelled import LabelledTable, count_long
from weft.data.pairs import PairsTable, fit
from weft.data.source import Readable
from weft.data.span_order import asked_tokens
from weft.data.span_source import SIDES as ASKED
from weft.data.span_source import AskedTable
from weft.data.tables import DataTable
from weft.data.tagged import TaggedTable, refuse_long
from weft.models.baseline_tables import BaselineTable
from weft.tasks.tagging import learned_tags
from weft.text.labelled_tokens import LabelledTokens, load_labelled
from weft.text.labels import Labels
from weft.text.sides import Sides, SidesTable, load_sides, save_sides, train_sides
from weft.text.tokenizers import KINDS, Tokenizer, TokenizerTable, train_tokenizer
from weft.train import checkpoint

if TYPE_CHECKING:
    from weft.train.folder import RunFolder
    from weft.train.job import Watcher
    from weft.train.settings import Settings


SIDES = ("source", "target")


class Prepared(NamedTuple):
    tokenizer: Any  # a Tokenizer, Sides, or LabelledTokens
    corpora: Mapping[str, Corpus]  # by split; of pairs by split and side: train.source, train.target; and so on


class Material(Protocol):
    """How the data of one shape is read; `data` and `tokenizer` are its tables of the run file."""

    @property
    def data(self) -> type[Table]: ...

    @property
    def tokenizer(self) -> type[Table]: ...

    def prepare(self, settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
        """Tokenizers and tokens on disk. Tokenizers are the run's own once it has a checkpoint; until then they are made
        anew, since the text may have changed: trained on the training text, or taken from the file that is named."""

    def load(self, folder: RunFolder) -> Any:
        """The tokenizer, or tokenizers, of a run."""


def _watched(texts: Iterator[str], total: int, watcher: Watcher) -> Iterator[str]:
    """The texts, with the progress of whoever reads them."""
    done = 0
    for text in texts:
        watcher.working("reading for the tokenizer", done, total)
        done += len(text)
        yield text
    watcher.working("making the tokenizer", 0, 1)


def _tokenised(name: str, source: Readable, tokenizer: Tokenizer, folder: RunFolder, watcher: Watcher) -> Corpus:
    """The tokens of a split, on disk; what an earlier process made is used again if the text is still the same."""

    def watch(done: int, total: int) -> None:
        watcher.working(f"tokenising {name}", done, total)

    names = checkpoint.names(folder.path)
    known = checkpoint.known(checkpoint.place(folder.path) / names[-1]).get("data", {}) if names else {}
    files.own_folder(folder.data)
    must_match = str(known.get(name, "")) if names else None
    return write_corpus(source, tokenizer, folder.data, name, watch=watch, must_match=must_match, told=watcher.note)


class Texts:
    """Running text, or lines: one tokenizer, one corpus a split."""

    data, tokenizer = DataTable, TokenizerTable

    def prepare(self, settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
        sources = settings.sources()
        tokenizer = self._tokenizer(settings, sources["train"], folder, watcher)
        corpora = {name: _tokenised(name, source, tokenizer, folder, watcher) for name, source in sources.items()}
        return Prepared(tokenizer, corpora)

    def _tokenizer(self, settings: Settings, source: Any, folder: RunFolder, watcher: Watcher) -> Tokenizer:
        if checkpoint.names(folder.path):
            return Tokenizer.load(folder.tokenizer)
        watcher.note(source.seen.describe())
        tokenizer = train_tokenizer(settings.tokenizer, _watched(source.texts(), source.seen.characters, watcher))
        tokenizer.save(folder.tokenizer)
        return tokenizer

    def load(self, folder: RunFolder) -> Tokenizer:
        return Tokenizer.load(folder.tokenizer)


class PairsOfTexts:
    """Sources and targets: a tokenizer for both, or one each; two corpora a split."""

    data, tokenizer = PairsTable, SidesTable

    def prepare(self, settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
        sources = settings.sources()
        sides = self._sides(settings, sources["train"], folder, watcher)
        corpora = {}
        for split, pairs in sources.items():
            for which, tokenizer in zip(SIDES, sides, strict=True):
                name, side = f"{split}.{which}", pairs.side(which)
                corpus = _tokenised(name, side, tokenizer, folder, watcher)
                corpora[name] = fit(corpus, side, longest=settings.data.longest, truncate=settings.data.truncate)
        return Prepared(sides, corpora)

    def _sides(self, settings: Settings, pairs: Any, folder: RunFolder, watcher: Watcher) -> Sides:
        if checkpoint.names(folder.path):
            return load_sides(folder.path)
        watcher.note(pairs.seen.describe())

        def texts(side: str) -> Callable[[], Iterator[str]]:
            return lambda: _watched(pairs.side(side).texts(), pairs.seen.characters, watcher)

        sides = train_sides(settings.tokenizer, texts("source"), texts("target"))
        save_sides(sides, folder.path)
        return sides

    def load(self, folder: RunFolder) -> Sides:
        return load_sides(folder.path)


class WordTable(TokenizerTable):
    """How labelled texts become tokens."""

    kind: Annotated[str, OneOf(KINDS, "kind")] = "word"


class SpaceTable(TokenizerTable):
    """How tagged words become tokens."""

    kind: Annotated[str, OneOf(KINDS, "kind")] = "space"


class LabelledTexts:
    """Texts with labels: one tokenizer, a corpus for each split and column (train.0, train.1)."""

    data, tokenizer = LabelledTable, WordTable

    def prepare(self, settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
        sources = settings.sources()
        read = self._read(settings, sources["train"], folder, watcher)
        corpora: dict[str, Corpus] = {}
        if isinstance(settings.model, BaselineTable):  # it has terms of its own, and reads a text to its end
            return Prepared(read, corpora)
        for split, source in sources.items():
            names = [f"{split}.{at}" for at in range(len(settings.data.columns()))]
            for at, name in enumerate(names):
                corpora[name] = _tokenised(name, source.side(at), read.tokenizer, folder, watcher)
            limits = {"longest": settings.data.longest, "truncate": settings.data.truncate}
            if cut := count_long([corpora[name] for name in names], source, **limits):
                watcher.note(
                    f"{split}: {cut:,} texts are longer than data.longest = {settings.data.longest} tokens, and are cut"
                )
        return Prepared(read, corpora)

    def _read(self, settings: Settings, source: Any, folder: RunFolder, watcher: Watcher) -> LabelledTokens:
        if checkpoint.names(folder.path):
            return load_labelled(folder.path)
        watcher.note(source.seen.describe())
        source.refuse_own_labels()
        sides = [source.side(at) for at in range(len(settings.data.columns()))]
        texts = chain.from_iterable(side.texts() for side in sides)
        tokenizer = train_tokenizer(settings.tokenizer, _watched(texts, source.seen.characters, watcher))
        read = LabelledTokens(tokenizer, Labels.count(chain.from_iterable(source.labels())))
        read.save(folder.path)
        return read

    def load(self, folder: RunFolder) -> LabelledTokens:
        return load_labelled(folder.path)


class TaggedTexts:
    """Sentences with tagged words: one tokenizer, and one of letters where words are spelled; corpora whose lines are words
    (train.words, train.letters)."""

    data, tokenizer = TaggedTable, SpaceTable

    def prepare(self, settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
        sources = settings.sources()
        read = self._read(settings, sources["train"], folder, watcher)
        corpora = {}
        for split, source in sources.items():
            corpora[f"{split}.words"] = _tokenised(f"{split}.words", source.words(), read.tokenizer, folder, watcher)
            refuse_long(corpora[f"{split}.words"], source, longest=settings.data.longest)
            if read.letters is not None:
                name = f"{split}.letters"
                corpora[name] = _tokenised(name, source.words(), read.letters, folder, watcher)
        return Prepared(read, corpora)

    def _read(self, settings: Settings, source: Any, folder: RunFolder, watcher: Watcher) -> LabelledTokens:
        if checkpoint.names(folder.path):
            return load_labelled(folder.path)
        watcher.note(source.seen.describe())

        def made(table: TokenizerTable) -> Tokenizer:
            return train_tokenizer(table, _watched(source.words().texts(), source.seen.characters, watcher))

        spells = settings.model.letters() is not None
        letters = made(TokenizerTable(kind="char")) if spells else None
        tags, mended = learned_tags(source)
        if mended:
            watcher.note(f"{mended:,} sentences have tags that no scheme writes so; they are mended, and mark the same spans")
        read = LabelledTokens(made(settings.tokenizer), Labels.count(tags), letters)
        read.save(folder.path)
        return read

    def load(self, folder: RunFolder) -> LabelledTokens:
        return load_labelled(folder.path)


class AskedTexts:
    """Questions about passages: one tokenizer for both, two corpora a split (train.questions, train.passages)."""

    data, tokenizer = AskedTable, WordTable

    def prepare(self, settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
        sources, longest = settings.sources(), settings.data.longest
        tokenizer = self._tokenizer(settings, sources["train"], folder, watcher)
        corpora = {}
        for split, source in sources.items():
            for side in ASKED:
                name = f"{split}.{side}"
                corpora[name] = _tokenised(name, source.side(side), tokenizer, folder, watcher)
            sizes = np.diff(corpora[f"{split}.questions"].line_starts()) - 1
            if cut := int((asked_tokens(sizes, longest) < sizes).sum()):
                watcher.note(f"{split}: {cut:,} questions have more than half of data.longest = {longest} tokens, and are cut")
        return Prepared(tokenizer, corpora)

    def _tokenizer(self, settings: Settings, source: Any, folder: RunFolder, watcher: Watcher) -> Tokenizer:
        if checkpoint.names(folder.path):
            return Tokenizer.load(folder.tokenizer)
        watcher.note(source.seen.describe())
        texts = chain.from_iterable(source.side(side).texts() for side in ASKED)
        tokenizer = train_tokenizer(settings.tokenizer, _watched(texts, source.seen.characters, watcher))
        tokenizer.save(folder.tokenizer)
        return tokenizer

    def load(self, folder: RunFolder) -> Tokenizer:
        return Tokenizer.load(folder.tokenizer)


def tokenizer_files(folder: Path) -> list[Path]:
    """Where a run keeps its tokenizer, or its two."""
    names = ("tokenizer.json", "tokenizer.source.json", "tokenizer.target.json")
    return [folder / name for name in names if (folder / name).exists()]
