"""What a trained run is measured with: files that are named, or a split of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import plain, read_table
from weft.data.check_labels import named as counted_names
from weft.data.corpus import Corpus, Watch, open_corpus, write_corpus
from weft.data.opening import opened
from weft.data.record import recorded, stranger
from weft.data.source import Source
from weft.data.use import refuse_marked
from weft.errors import DataError, ModelError, UsageError
from weft.runs.folder import RunFolder
from weft.runs.settings import Settings
from weft.text.gate import quoted
from weft.text.tokenizers import Tokenizer

KNOWN = 8  # labels of a run that are named
Files = str | Path | Sequence[str | Path]


def named(data: Files) -> list[Path]:
    """The files of `data`, which is one, or several."""
    paths = [data] if isinstance(data, str | Path) else list(data)
    if not paths:
        raise UsageError("evaluate: data names no file")
    return [Path(path) for path in paths]


def own_source(folder: RunFolder, settings: Settings, split: str) -> Any:
    """A split of the run's own data, if its files are those that training read. A run folder from elsewhere names files of
    this machine, and what a command makes of them may be sent around: any other file is refused."""
    source = settings.datasets[split]
    if folder.named or not any(path.exists() for path in source.paths):
        return source
    record = recorded(folder.data, split)
    if not record:
        raise ModelError(f"{folder.path}: has no record of the {split} data that it was trained with; use --data FILE")
    if (path := stranger(source.paths, record)) is not None:
        raise DataError(
            f"{path}: is not the {split} data that {folder.path} was trained with: its size or sum differs from"
            f" {folder.data / split}.json; put the file back, or use --data FILE"
        )
    return source


def own_or_gone(folder: RunFolder, settings: Settings, split: str) -> Any:
    """The same, or None where its files are gone or are no longer those that training read."""
    if split not in (own := settings.datasets) or not all(path.exists() for path in own[split].paths):
        return None
    with suppress(DataError, ModelError):
        return own_source(folder, settings, split)
    return None


def first_split(folder: RunFolder, settings: Settings, splits: Sequence[str]) -> tuple[str, Any]:
    """The first of some splits that the run has, with its name."""
    own = settings.datasets
    name = next((name for name in splits if name in own), None)
    if name is None:
        if not own:
            raise UsageError(f"{folder.path}: was imported, so it has no data of its own; give --data FILE")
        what = " or ".join({"test": "test", "valid": "validation"}[name] for name in splits)
        raise UsageError(f"{folder.path}: the run has no {what} data; give --data FILE")
    return name, own_source(folder, settings, name)


def own_split(folder: RunFolder, settings: Settings) -> tuple[str, Any]:
    """The run's test data, or else its validation data, with its name."""
    return first_split(folder, settings, ("test", "valid"))


def held_source(folder: RunFolder, settings: Settings, data: Files | None) -> Any:
    """Labelled texts, tagged sentences, or pairs: of the files of `data`, read as the run's own are, or of the run's own."""
    if data is None:
        return own_split(folder, settings)[1]
    table, paths = settings.data, named(data)
    settings.spec.data.check_files(paths)
    options = {name: value for name, value in plain(table).items() if name not in ("valid", "test")}
    return read_table(type(table), {**options, "train": list(map(str, paths))}, at="data").sources(Path())["train"]


def none_known(
    source: Any, counts: Counter[str], labels: Sequence[str], folder: RunFolder, *, what: str, cure: str
) -> DataError:
    """What is wrong with data of which a run knows no label, or tag: scores would be 0, and say nothing."""
    known = ", ".join(quoted(name, 20) for name in labels[:KNOWN]) + (" and more" if len(labels) > KNOWN else "")
    return DataError(
        f"{source.name}: none of its {what} is one of {folder.path}'s: {counted_names(counts)}; those are {known}; {cure}"
    )


def token_counts(folder: RunFolder, corpus: str, size: int) -> np.ndarray | None:
    """int64 (V,): how often each token occurs in a corpus that a run was trained on; None where that is not there any more."""
    with suppress(ModelError):
        found: np.ndarray = np.bincount(open_corpus(folder.data, corpus, check=False).tokens, minlength=size)
        return found
    return None


class HeldOut:
    """Of a run that reads texts."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: Tokenizer) -> None:
        self.folder, self.settings, self.tokenizer = folder, settings, tokenizer

    def corpus(self, data: Files | None, place: Path, reading: Watch | None) -> Corpus:
        """The tokens of `data`, or of the run's own test or validation data; what must be written goes to `place`."""
        if data is None:
            found = self._own(*own_split(self.folder, self.settings), place, reading)
        else:
            paths = named(data)
            for path in paths:
                refuse_marked(path, self.settings.data.train, tables=True)
            source = Source(tuple(paths), self.settings.data.encoding, self.settings.data.read == "lines")
            found = write_corpus(source, self.tokenizer, place, "data", watch=reading)
        return opened(found, self.folder.path, self.tokenizer)

    def _own(self, name: str, source: Source, place: Path, reading: Watch | None) -> Corpus:
        """A split of the run: from its text, or, where that is not there, from the tokens that training left."""
        if (self.folder.data / f"{name}.json").exists() and not any(path.exists() for path in source.paths):
            corpus = open_corpus(self.folder.data, name)
            if corpus.tokenizer == self.tokenizer.hash:
                return corpus
        return write_corpus(source, self.tokenizer, place, name, watch=reading)
