"""The data that a run is evaluated on: files, or a split of its own data."""

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
from weft.data.provenance import changed_file, read_fingerprints
from weft.data.source import Source
from weft.errors import DataError, ModelError, UsageError
from weft.runs.config import RunConfig
from weft.runs.run_dir import RunDir
from weft.tasks.prepared_data import open_prepared_corpus
from weft.text.reading import quote
from weft.text.tokenizers import Tokenizer

MAX_LABELS = 8  # labels in a message
CHUNK_TOKENS = 1 << 24  # tokens counted at once
Files = str | Path | Sequence[str | Path]


def as_paths(data: Files) -> list[Path]:
    """One or more files as a list of paths."""
    paths = [data] if isinstance(data, str | Path) else list(data)
    if not paths:
        raise UsageError("evaluate", "`data` has no files")
    return [Path(path) for path in paths]


def own_source(directory: RunDir, config: RunConfig, split: str) -> Any:
    """A split of the run's own data. Refuses files that have changed since training: a run directory from elsewhere could name
    any file of this machine, and the output of a command may be published."""
    source = config.datasets[split]
    if directory.has_own_run_file or not any(path.exists() for path in source.paths):
        return source
    record = read_fingerprints(directory.data, split)
    if not record:
        raise ModelError(directory.path, f"has no record of its {split} data", "set `data`")
    if (path := changed_file(source.paths, record)) is not None:
        raise DataError(
            path,
            f"differs from the {split} data of {directory.path} (size or checksum in {directory.data / split}.json)",
            "restore the file or set `data`",
        )
    return source


def own_source_or_none(directory: RunDir, config: RunConfig, split: str) -> Any:
    """A split of the run's own data; None if its files are missing or have changed since training."""
    if split not in (datasets := config.datasets) or not all(path.exists() for path in datasets[split].paths):
        return None
    with suppress(DataError, ModelError):
        return own_source(directory, config, split)
    return None


def first_split(directory: RunDir, config: RunConfig, splits: Sequence[str]) -> tuple[str, Any]:
    """The first of `splits` that the run has, with its name."""
    datasets = config.datasets
    name = next((name for name in splits if name in datasets), None)
    if name is None:
        if not datasets:
            raise UsageError(directory.path, "an imported run has no data", "set `data`")
        missing = " or ".join({"test": "test", "valid": "validation"}[name] for name in splits)
        raise UsageError(directory.path, f"the run has no {missing} data", "set `data`")
    return name, own_source(directory, config, name)


def own_split(directory: RunDir, config: RunConfig) -> tuple[str, Any]:
    """The run's test data, or its validation data if it has no test data, with the name of the split."""
    return first_split(directory, config, ("test", "valid"))


def eval_source(directory: RunDir, config: RunConfig, data: Files | None) -> Any:
    """Labeled texts, tagged sentences or pairs: from the files of `data`, read with the options of the run, or from the run's
    own data."""
    if data is None:
        return own_split(directory, config)[1]
    paths = as_paths(data)
    config.spec.data.check_files(config.data, paths)
    options = {name: value for name, value in to_dict(config.data).items() if name not in ("valid", "test")}
    return parse_config(type(config.data), {**options, "train": list(map(str, paths))}, prefix="data").sources(Path())["train"]


def no_known_labels(
    source: Any, counts: Counter[str], labels: Sequence[str], directory: RunDir, *, unit: str, fix: str
) -> DataError:
    """The error for data without any label or tag of the run: all scores would be 0."""
    expected = ", ".join(quote(name, 20) for name in labels[:MAX_LABELS]) + (" and more" if len(labels) > MAX_LABELS else "")
    return DataError(source.name, f"has no {unit} of {directory.path} ({expected}), only {counted_names(counts)}", fix)


def open_own_corpus(directory: RunDir, config: RunConfig, name: str, *, check: bool = True) -> Corpus | None:
    """The tokens of a split that training used, in the run directory or in data.prepared; None if they no longer exist."""
    if config.data.prepared is None and not (directory.data / f"{name}.json").exists():
        return None
    return (
        open_corpus(directory.data, name, check=check) if config.data.prepared is None else open_prepared_corpus(config, name)
    )


def token_counts(directory: RunDir, config: RunConfig, corpus: str, vocab_size: int) -> np.ndarray | None:
    """int64 (V,): the count of each token in a corpus that a run was trained on; None if it no longer exists."""
    with suppress(ModelError):
        opened = open_own_corpus(directory, config, corpus, check=False)
        if opened is None:
            return None
        starts = range(0, len(opened.tokens), CHUNK_TOKENS)
        parts = (np.bincount(opened.tokens[start : start + CHUNK_TOKENS], minlength=vocab_size) for start in starts)
        counts: np.ndarray = sum(parts, np.zeros(vocab_size, np.int64))
        return counts
    return None


class EvalData:
    """The evaluation data of a run that reads running text or lines."""

    def __init__(self, directory: RunDir, config: RunConfig, tokenizer: Tokenizer) -> None:
        self.directory, self.config, self.tokenizer = directory, config, tokenizer

    def corpus(self, data: Files | None, temp_dir: Path, progress: ProgressCallback | None) -> Corpus:
        """The tokens of `data`, or of the run's own test or validation data. Token files are written to `temp_dir`."""
        if data is None:
            corpus = self._own_corpus(*own_split(self.directory, self.config), temp_dir, progress)
        else:
            paths = as_paths(data)
            for path in paths:
                check_unlabeled(path, self.config.data.train, tables=True)
            source = Source(tuple(paths), self.config.data.encoding, self.config.data.read_as == "lines")
            corpus = write_corpus(source, self.tokenizer, temp_dir, "data", progress=progress)
        return with_bos(corpus, self.directory.path, self.tokenizer)

    def valid_corpus(self, temp_dir: Path) -> Corpus:
        """The tokens of the run's validation data, to fit options on."""
        if "valid" not in self.config.datasets:
            raise UsageError(self.directory.path, "the run has no validation data to fit on", "set the values instead")
        corpus = self._own_corpus("valid", own_source(self.directory, self.config, "valid"), temp_dir, None)
        return with_bos(corpus, self.directory.path, self.tokenizer)

    def _own_corpus(self, name: str, source: Source, temp_dir: Path, progress: ProgressCallback | None) -> Corpus:
        """A split of the run: from its text, or, if that is missing, from the token files of training."""
        if not any(path.exists() for path in source.paths):
            corpus = open_own_corpus(self.directory, self.config, name)
            if corpus is not None and corpus.tokenizer == self.tokenizer.hash:
                return corpus
        return write_corpus(source, self.tokenizer, temp_dir, name, progress=progress)
