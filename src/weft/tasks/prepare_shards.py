"""Preparation of large data ahead of training: the vocabulary of a run file, and the corpora of its splits in shards.

Several processes on several machines can each write some of the shards. Everything is written atomically: a process that is
killed loses the shard that it was writing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft import files
from weft.data.array_files import provenance_hash
from weft.data.config import training
from weft.data.prepared_index import (
    INDEX,
    PLAN,
    VERSION,
    digests,
    profile_json,
    read_checked,
    refuse_difference,
    source_states,
    write_checked,
)
from weft.data.profile import profile_data
from weft.data.shards import ShardWriter, Subset
from weft.data.source import Source, file_state, known_digests
from weft.data.verification import write_states
from weft.errors import DataError, InUseError, UsageError
from weft.lock import Lock
from weft.tasks.data_spec import corpus_name
from weft.tasks.prepared_data import corpus_provenance, refuse_other_vocabulary, text_columns, tokenizer_key

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

POLL_SECONDS = 0.5


class PrepareCallback(Protocol):
    """Receives the progress of a preparation."""

    def on_note(self, text: str) -> None: ...

    def on_data(self, summary: str) -> None: ...

    def on_progress(self, phase: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Preparation:
    """The data of a run file in a directory of shards."""

    config: RunConfig
    directory: Path
    shard_chars: int

    def plan(self, callback: PrepareCallback, *, verify: bool = False) -> dict[str, Any]:
        """Build the vocabulary and write what the data is made from, or check that it is the same as before: by size and
        modification time of each file, or, with `verify`, by checksums. Other processes wait meanwhile."""
        files.make_directories(self.directory)
        with self._locked(callback):
            path = self.directory / PLAN
            stored = read_checked(path) if path.exists() else None
            if stored is not None:
                self._refuse_other_options(stored)
            vocabulary = self._build(callback) if stored is None else self._load(stored)
            with known_digests({} if stored is None or verify else digests(stored)):
                corpora = self._provenance(vocabulary)
            if stored is not None:
                for name, provenance in corpora.items():
                    source = self.config.datasets[name.partition(".")[0]].name
                    refuse_difference(self.directory, name, stored["corpora"].get(name), provenance, source)
                return stored
            content = self._describe(vocabulary, corpora)
            write_checked(path, content)
            return content

    def _build(self, callback: PrepareCallback) -> Any:
        if any(path.name != ".lock" for path in self.directory.iterdir()):
            raise UsageError(self.directory, "exists and has no prepared data", "choose another `output_dir`")
        train, builder = training(self.config.datasets), self.config.spec.data.vocabulary
        callback.on_data(train.summary.describe())
        total = train.summary.characters

        def with_progress(texts: Iterator[str]) -> Iterator[str]:
            done = 0
            for text in texts:
                callback.on_progress("reading training data", done, total)
                done += len(text)
                yield text
            callback.on_progress("training tokenizer", 0, 1)

        vocabulary = builder.build(self.config, train, with_progress, callback.on_note)
        text_columns(self.config, vocabulary)  # before anything is written
        builder.save(vocabulary, self.directory)
        return vocabulary

    def _load(self, plan: Mapping[str, Any]) -> Any:
        """The vocabulary of a plan."""
        vocabulary = self.config.spec.data.vocabulary.load(self.directory)
        if vocabulary.hash != plan["vocabulary"]:
            raise DataError(self.directory, "the vocabulary has changed since the preparation began", "use `overwrite`")
        return vocabulary

    def _describe(self, vocabulary: Any, corpora: Mapping[str, Any]) -> dict[str, Any]:
        datasets = self.config.datasets
        train = training(datasets)
        return {
            "version": VERSION,
            "task": self.config.task,
            "tokenizer": self.config.to_dict()["tokenizer"],
            "tokenizer_key": tokenizer_key(self.config),
            "has_extended_vocabulary": self.config.spec.data.has_extended_vocabulary(self.config),
            "vocabulary": vocabulary.hash,
            "shard_size": self.shard_chars,
            "summary": train.summary.describe(),
            "profile": profile_json(profile_data(train, has_valid="valid" in datasets, is_gpu=False)),
            "spans": {split: dataset.spans() for split, dataset in datasets.items() if isinstance(dataset, Source)},
            "sizes": {name: source.size() for name, source in self._sources(vocabulary)},
            "sources": source_states(path for dataset in datasets.values() for path in dataset.paths),
            "corpora": corpora,
        }

    def _refuse_other_options(self, stored: Mapping[str, Any]) -> None:
        refuse_other_vocabulary(self.config, self.directory, stored)
        if stored["shard_size"] != self.shard_chars:
            problem = f"{self.directory} has shards of {stored['shard_size']:,} characters, not {self.shard_chars:,}"
            raise UsageError("shard_size", problem, "leave it out, or use `overwrite` to start over")

    @contextmanager
    def _locked(self, callback: PrepareCallback) -> Iterator[None]:
        has_waited = False
        while True:
            lock = Lock(self.directory)
            try:
                lock.__enter__()
                break
            except InUseError as error:
                if not has_waited:
                    callback.on_note(f"{error.where}: {error.problem}; waiting for it")
                has_waited = True
                time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _sources(self, vocabulary: Any) -> list[tuple[str, Any]]:
        columns = text_columns(self.config, vocabulary)
        return [
            (corpus_name(split, column.name), column.source(dataset))
            for split, dataset in self.config.datasets.items()
            for column in columns
        ]

    def _provenance(self, vocabulary: Any) -> dict[str, Any]:
        columns = text_columns(self.config, vocabulary)
        return {
            corpus_name(split, column.name): files.as_json(corpus_provenance(column.tokenizer, column.source(dataset)))
            for split, dataset in self.config.datasets.items()
            for column in columns
        }

    def writers(self, plan: Mapping[str, Any]) -> dict[str, ShardWriter]:
        """The writer of each corpus."""
        vocabulary = self._load(plan)
        columns = text_columns(self.config, vocabulary)
        datasets = {
            # known spans: otherwise every process reads the text to find them
            split: replace(dataset, known_spans=plan["spans"][split]) if isinstance(dataset, Source) else dataset
            for split, dataset in self.config.datasets.items()
        }
        return {
            (name := corpus_name(split, column.name)): ShardWriter(
                column.source(dataset),
                column.tokenizer,
                self.directory / name,
                provenance_hash({**plan["corpora"][name], "shard_size": plan["shard_size"]}),
                plan["shard_size"],
            )
            for split, dataset in datasets.items()
            for column in columns
        }

    def max_processes(self, plan: Mapping[str, Any], machines: int = 1) -> int:
        """The number of processes on each machine that can have a shard to write."""
        num_shards = max(plan["sizes"].values(), default=0) // self.shard_chars + 1  # sizes are in bytes
        return -(-num_shards // machines)

    def write(self, plan: Mapping[str, Any], subset: Subset, callback: PrepareCallback) -> None:
        """Write the shards of a subset that are not finished."""
        total, before = max(1, sum(plan["sizes"].values())), 0
        for name, writer in self.writers(plan).items():

            def report(done: int, before: int = before, size: int = plan["sizes"][name]) -> None:
                callback.on_progress("tokenizing", before + min(done, size), total)

            writer.write(subset, report)
            before += plan["sizes"][name]
            callback.on_progress("tokenizing", before, total)

    def join(self, plan: Mapping[str, Any]) -> dict[str, int | None]:
        """Write the index if all shards are finished. Returns the number of missing shards of each unfinished corpus; None if
        it is not known."""
        writers = self.writers(plan)
        missing = {name: writer.missing() for name, writer in writers.items()}
        unfinished = {name: None if numbers is None else len(numbers) for name, numbers in missing.items() if numbers != []}
        if unfinished:
            return unfinished
        self.refuse_changed_files(plan)
        corpora = {name: {"provenance": plan["corpora"][name], **writer.describe()} for name, writer in writers.items()}
        for writer in writers.values():
            write_states(self.directory, writer.states())
        write_checked(self.directory / INDEX, {**plan, "corpora": corpora})
        return {}

    def refuse_changed_files(self, plan: Mapping[str, Any]) -> None:
        """Refuse files that were changed while they were read."""
        known = digests(plan)
        for dataset in self.config.datasets.values():
            for path in dataset.paths:
                if file_state(path) not in known and files.sha256(path) not in known.values():
                    raise DataError(path, "changed while it was read", "use `overwrite` to prepare the data again")

    def verify(self, plan: Mapping[str, Any], subset: Subset, callback: PrepareCallback) -> list[Path]:
        """Read all shards of a subset, and remove those whose checksums are wrong. Returns the wrong files."""
        damaged = list[Path]()
        writers = self.writers(plan)
        for number, writer in enumerate(writers.values()):
            callback.on_progress("verifying", number, len(writers))
            damaged += writer.remove_damaged(subset)
        if damaged:
            files.remove(self.directory / INDEX)
        return damaged
