"""What a run is trained on: its data as tokens on disk, and the vocabulary that made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import files
from weft.data.corpus import Corpus, write_corpus
from weft.data.source import Readable
from weft.data.tables import training
from weft.tasks.data_spec import Column, Prepared
from weft.tasks.spec import Task
from weft.text.tokenizers import Tokenizer
from weft.train import checkpoint

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder
    from weft.runs.job import Watcher
    from weft.runs.settings import Settings


def _tokenized(name: str, source: Readable, tokenizer: Tokenizer, folder: RunFolder, watcher: Watcher) -> Corpus:
    """The tokens of a column, on disk; those that an earlier process made are used again if the text is still the same."""

    def watch(done: int, total: int) -> None:
        watcher.working(f"tokenising {name}", done, total)

    names = checkpoint.names(folder.path)
    known = checkpoint.known(checkpoint.place(folder.path) / names[-1]).get("data", {}) if names else {}
    files.own_folder(folder.data)
    must_match = str(known.get(name, "")) if names else None
    return write_corpus(source, tokenizer, folder.data, name, watch=watch, must_match=must_match, told=watcher.note)


def _vocabulary(task: Task[Any, Any], settings: Settings, folder: RunFolder, watcher: Watcher) -> Any:
    """The run's own once it has a checkpoint. Until then it is made anew, since the data may have changed."""
    builder = task.data.vocabulary
    if checkpoint.names(folder.path):
        return builder.load(folder.path)
    train = training(settings.datasets)
    watcher.note(train.seen.describe())
    total = train.seen.characters

    def watched(texts: Iterator[str]) -> Iterator[str]:
        done = 0
        for text in texts:
            watcher.working("reading for the tokenizer", done, total)
            done += len(text)
            yield text
        watcher.working("making the tokenizer", 0, 1)

    made = builder.make(settings, train, watched, watcher.note)
    builder.save(made, folder.path)
    return made


def _readable(dataset: Any, column: Column) -> Readable:
    """The texts of a column; running text has one, itself."""
    found: Readable = dataset.column(column.name, column.texts) if column.name else dataset
    return found


def tokenize(task: Task[Any, Any], settings: Settings, vocabulary: Any, dataset: Any, place: Path) -> Sequence[Corpus]:
    """The columns of any data set as tokens, which are written into `place`; what is too long is refused, or cut."""
    made = [
        write_corpus(_readable(dataset, column), column.tokenizer, place, f"data.{column.name}" if column.name else "data")
        for column in task.data.columns(settings, vocabulary)
    ]
    return task.data.fit(settings, dataset, made).corpora


def prepare(task: Task[Any, Any], settings: Settings, folder: RunFolder, watcher: Watcher) -> Prepared:
    """A run's vocabulary, and every column of every split as tokens on disk."""
    vocabulary = _vocabulary(task, settings, folder, watcher)
    columns = task.data.columns(settings, vocabulary)
    corpora: dict[str, Corpus] = {}
    for split, dataset in settings.datasets.items() if columns else ():
        names = [f"{split}.{column.name}" if column.name else split for column in columns]
        made = [
            _tokenized(name, _readable(dataset, column), column.tokenizer, folder, watcher)
            for name, column in zip(names, columns, strict=True)
        ]
        fitted = task.data.fit(settings, dataset, made)
        corpora |= zip(names, fitted.corpora, strict=True)
        if fitted.note is not None:
            watcher.note(f"{split}: {fitted.note}")
    prepared = Prepared(vocabulary, corpora)
    if task.data.finish is not None and not checkpoint.names(folder.path):
        task.data.finish(settings, prepared, folder.path, watcher.note)
    return prepared
