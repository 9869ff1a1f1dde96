"""Opens data that was prepared ahead of training: the vocabulary and corpora of `data.prepared`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import files
from weft.data.corpus import VERSION, Corpus
from weft.data.frames import FrameColumn
from weft.data.prepared_index import digests, read_index, refuse_difference
from weft.data.provenance import write_fingerprints
from weft.data.shards import open_shards, unverified
from weft.data.source import known_digests
from weft.data.verification import BackgroundVerifier, read_verified
from weft.errors import ConfigError, DataError, ModelError
from weft.tasks.data_spec import Column, corpus_name
from weft.training import checkpoint

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import JobCallback
    from weft.runs.run_dir import RunDir


def open_prepared(
    config: RunConfig, directory: RunDir, callback: JobCallback, *, expected: Mapping[str, str] | None = None
) -> tuple[Any, dict[str, Corpus]]:
    """The vocabulary and the corpora of all splits of a run from `data.prepared`. Refuses data that was prepared from other
    files, with another tokenizer or with other options. If another process writes the run directory, `expected` are the
    checksums of its corpora."""
    prepared, builder = Path(config.data.prepared), config.spec.data.vocabulary
    index = read_index(prepared)
    refuse_other_vocabulary(config, prepared, index)
    vocabulary = builder.load(prepared)
    if vocabulary.hash != index["vocabulary"]:
        raise ModelError(prepared, "corrupted: its tokenizer is not the one that its tokens are from", "run weft prepare again")
    columns = text_columns(config, vocabulary)
    with known_digests(digests(index)):
        corpora = _open_corpora(config, prepared, index, columns)
    if expected is not None:
        _refuse_another_text(corpora, expected)
        return vocabulary, corpora
    if names := checkpoint.names(directory.path):
        started = checkpoint.checksums(checkpoint.checkpoints_dir(directory.path) / names[-1]).get("data", {})
        _refuse_another_text(corpora, started)
    else:
        callback.on_data(index["summary"])
        builder.save(vocabulary, directory.path)
    files.make_subdirectory(directory.data)
    for split in config.datasets:
        entries = [index["corpora"][corpus_name(split, column.name)]["provenance"]["files"] for column in columns]
        write_fingerprints(directory.data, split, [entry for part in entries for entry in part])
    return vocabulary, corpora


def _open_corpora(config: RunConfig, prepared: Path, index: Mapping[str, Any], columns: list[Column]) -> dict[str, Corpus]:
    verifier, verified = BackgroundVerifier(prepared), read_verified(prepared)
    corpora, checks = dict[str, Corpus](), []
    for split, dataset in config.datasets.items():
        for column in columns:
            name, source = corpus_name(split, column.name), column.source(dataset)
            entry, provenance = index["corpora"].get(name), corpus_provenance(column.tokenizer, source)
            stored = None if entry is None else entry["provenance"]
            refuse_difference(prepared, name, stored, provenance, source.name)
            checks += unverified(prepared / name, entry, verified)
            corpora[name] = open_shards(prepared / name, name, entry, provenance, verifier.check)
            corpora[name] = replace(corpora[name], start_tokens=column.tokenizer.start_tokens)
    verifier.start(checks)
    return corpora


def _refuse_another_text(corpora: Mapping[str, Corpus], started: Mapping[str, str]) -> None:
    """Refuse to train with other data than a run was started with, here or in another process."""
    for name, corpus in corpora.items():
        if started.get(name) != corpus.provenance:
            problem = f"{name} is not the text that the run was started with"
            raise DataError("data.prepared", problem, "restore it or start a new run")


def open_prepared_corpus(config: RunConfig, name: str) -> Corpus | None:
    """A corpus of `data.prepared` without its text, for runs whose text is missing; None if the run has none."""
    if config.data.prepared is None:
        return None
    prepared = Path(config.data.prepared)
    entry = read_index(prepared)["corpora"].get(name)
    if entry is None:
        return None
    verifier = BackgroundVerifier(prepared)
    verifier.start(unverified(prepared / name, entry, read_verified(prepared)))
    return open_shards(prepared / name, name, entry, entry["provenance"], verifier.check)


def text_columns(config: RunConfig, vocabulary: Any) -> list[Column]:
    """The columns to tokenize; a model that uses none, or that reads sounds or images, is refused."""
    columns = config.spec.data.columns(config, vocabulary)
    texts = [column for column in columns if not isinstance(column, FrameColumn)]
    if not texts or len(texts) < len(columns):
        problem = f"task {config.task} with model.arch {config.arch!r} does not read tokens that are prepared ahead of training"
        raise ConfigError("data.prepared", problem, "train without it")
    return texts


def tokenizer_key(config: RunConfig) -> dict[str, Any]:
    """[tokenizer] with the checksums of its files instead of their names."""

    def key(table: Mapping[str, Any]) -> dict[str, Any]:
        if "file" in table:
            return {"sha256": files.sha256(Path(table["file"]))}
        return {name: key(value) if isinstance(value, Mapping) else value for name, value in table.items()}

    return key(config.to_dict()["tokenizer"])


def corpus_provenance(tokenizer: Any, source: Any) -> dict[str, Any]:
    """The provenance of a corpus, the same as without shards."""
    return {"version": VERSION, "tokenizer": tokenizer.hash, **source.provenance()}


def refuse_other_vocabulary(config: RunConfig, directory: Path, stored: Mapping[str, Any]) -> None:
    """Refuse prepared data of another task or with another tokenizer."""
    fix = "prepare the data again into another directory"
    if stored["task"] != config.task:
        raise ConfigError("task", f"{directory} was prepared for task {stored['task']}, not {config.task}", fix)
    old, new = stored["tokenizer_key"], files.as_json(tokenizer_key(config))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            problem = f"{directory} was prepared with {_shown(old.get(name))}, not {_shown(new.get(name))}"
            raise ConfigError("tokenizer.file" if name == "sha256" else f"tokenizer.{name}", problem, fix)
    if stored["has_extended_vocabulary"] != config.spec.data.has_extended_vocabulary(config):
        raise ConfigError("data.prepared", f"{directory} was prepared for models with another vocabulary", fix)


def _shown(value: Any) -> str:
    if value is None:
        return "a tokenizer without it"
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else repr(value)
