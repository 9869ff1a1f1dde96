"""What a trained run is measured with: files that are named, or a split of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import parse_config, to_dict
from weft.data.bos import with_bos
from weft.data.check_labels import list_counts as counted_names
from weft.data.corpus import Corpus, ProgressCallback, open_corpus, write_corpus
from weft.data.input_files import check_unlabeled
from weft.data.provenance import changed_file, read_record
from weft.data.source import Source
from weft.errors import DataError, ModelError, UsageError
from weft.runs.config import RunConfig
from weft.runs.run_dir import RunDir
from weft.text.reading import quote
from weft.text.tokenizers import Tokenizer

KNOWN = 8  # labels of a run that are named
Files = str | Path | Sequence[str | Path]


def named(data: Files) -> list[Path]:
    """The files of `data`, which is one, or several."""
    paths = [data] if isinstance(data, str | Path) else list(data)
    if not paths:
        raise UsageError("evaluate", "data names no file")
    return [Path(path) for path in paths]


def own_source(directory: RunDir, config: RunConfig, split: str) -> Any:
    """A split of the run's own data, if its files are those that training read. A run folder from elsewhere names files of
    this machine, and what a command makes of them may be sent around: any other file is refused."""
    source = config.datasets[split]
    if directory.named or not any(path.exists() for path in source.paths):
        return source
    record = read_record(directory.data, split)
    if not record:
        raise ModelError(directory.path, f"has no record of the {split} data that it was trained with", "use --data FILE")
    if (path := changed_file(source.paths, record)) is not None:
        raise DataError(
            path,
            f"is not the {split} data that {directory.path} was trained with: its size or sum differs from {directory.data / split}.json",
            "put the file back, or use --data FILE",
        )
    return source


def own_source_or_none(directory: RunDir, config: RunConfig, split: str) -> Any:
    """The same, or None where its files are gone or are no longer those that training read."""
    if split not in (own := config.datasets) or not all(path.exists() for path in own[split].paths):
        return None
    with suppress(DataError, ModelError):
        return own_source(directory, config, split)
    return None


def first_split(directory: RunDir, config: RunConfig, splits: Sequence[str]) -> tuple[str, Any]:
    """The first of some splits that the run has, with its name."""
    own = config.datasets
    name = next((name for name in splits if name in own), None)
    if name is None:
        if not own:
            raise UsageError(directory.path, "was imported, so it has no data of its own", "give --data FILE")
        what = " or ".join({"test": "test", "valid": "validation"}[name] for name in splits)
        raise UsageError(directory.path, f"the run has no {what} data", "give --data FILE")
    return name, own_source(directory, config, name)


def own_split(directory: RunDir, config: RunConfig) -> tuple[str, Any]:
    """The run's test data, or else its validation data, with its name."""
    return first_split(directory, config, ("test", "valid"))


def eval_source(directory: RunDir, settings: RunConfig, data: Files | None) -> Any:
    """Labelled texts, tagged sentences, or pairs: of the files of `data`, read as the run's own are, or of the run's own."""
    if data is None:
        return own_split(directory, settings)[1]
    table, paths = settings.data, named(data)
    settings.spec.data.check_files(paths)
    options = {name: value for name, value in to_dict(table).items() if name not in ("valid", "test")}
    return parse_config(type(table), {**options, "train": list(map(str, paths))}, at="data").sources(Path())["train"]


def no_known_labels(
    source: Any, counts: Counter[str], labels: Sequence[str], directory: RunDir, *, unit: str, fix: str
) -> DataError:
    """What is wrong with data of which a run knows no label, or tag: scores would be 0, and say nothing."""
    known = ", ".join(quote(name, 20) for name in labels[:KNOWN]) + (" and more" if len(labels) > KNOWN else "")
    return DataError(
        source.name, f"none of its {unit} is one of {directory.path}'s: {counted_names(counts)}; those are {known}", f"{fix}"
    )


def token_counts(directory: RunDir, corpus: str, size: int) -> np.ndarray | None:
    """int64 (V,): how often each token occurs in a corpus that a run was trained on; None where that is not there any more."""
    with suppress(ModelError):
        found: np.ndarray = np.bincount(open_corpus(directory.data, corpus, check=False).tokens, minlength=size)
        return found
    return None


class EvalData:
    """Of a run that reads texts."""

    def __init__(self, directory: RunDir, config: RunConfig, tokenizer: Tokenizer) -> None:
        self.directory, self.config, self.tokenizer = directory, config, tokenizer

    def corpus(self, data: Files | None, place: Path, reading: ProgressCallback | None) -> Corpus:
        """The tokens of `data`, or of the run's own test or validation data; what must be written goes to `place`."""
        if data is None:
            found = self._own(*own_split(self.directory, self.config), place, reading)
        else:
            paths = named(data)
            for path in paths:
                check_unlabeled(path, self.config.data.train, tables=True)
            source = Source(tuple(paths), self.config.data.encoding, self.config.data.read_as == "lines")
            found = write_corpus(source, self.tokenizer, place, "data", progress=reading)
        return with_bos(found, self.directory.path, self.tokenizer)

    def _own(self, name: str, source: Source, place: Path, reading: ProgressCallback | None) -> Corpus:
        """A split of the run: from its text, or, where that is not there, from the tokens that training left."""
        if (self.directory.data / f"{name}.json").exists() and not any(path.exists() for path in source.paths):
            corpus = open_corpus(self.directory.data, name)
            if corpus.tokenizer == self.tokenizer.hash:
                return corpus
        return write_corpus(source, self.tokenizer, place, name, progress=reading)
