"""Runs whose weights were computed from those of other runs, without training: pruned and averaged models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import files
from weft.data.bos import FILE as BOS_FILE
from weft.data.provenance import read_fingerprints, write_fingerprints
from weft.errors import UsageError
from weft.runs.atomic_dir import staged_directory
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.runs.run_dir import RunDir, make_directory

if TYPE_CHECKING:
    from torch import Tensor


def check_output_dir(output_dir: Path) -> RunDir:
    """Create the directory; raise if it contains a run or other files."""
    directory = make_directory(output_dir)
    directory.check_is_run_dir()
    if directory.resolved.is_file():
        raise UsageError(output_dir, "already contains a run", "choose another `output_dir`")
    return directory


def _vocabulary_files(run_dir: Path) -> list[Path]:
    """Tokenizers, labels and the BOS tokens."""
    return sorted([*run_dir.glob("tokenizer*.json"), *run_dir.glob("labels.json"), *run_dir.glob(BOS_FILE)])


def write_derived_run(
    run: AnyRun, output_dir: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], records: Mapping[str, Any]
) -> RunDir:
    """Write a run with the vocabulary and data of another one. Its run file initializes training from its own weights, and the
    training log is not copied.

    Args:
        run: The other run.
        output_dir: An empty directory, or a path that does not exist.
        values: The run file.
        tensors: The weights.
        records: JSON files that say where the weights come from, by name.
    """
    directory = check_output_dir(output_dir)
    config = resolve({**values, "train": {**values["train"], "init_from": str(output_dir.absolute())}}, base=Path())
    with staged_directory(output_dir, last=directory.resolved.name) as staged:
        derived = RunDir(staged)
        derived.begin(config, config.to_toml(), overwrite=False)
        derived.write_environment()
        for path in _vocabulary_files(run.directory.path):
            files.write_bytes(staged / path.name, path.read_bytes())
        for split in config.datasets:
            if record := read_fingerprints(run.directory.data, split):
                write_fingerprints(derived.data, split, record)
        for name, content in records.items():
            files.write_json(staged / name, content)
        derived.write_weights(tensors, run.vocabulary.hash, 0)
    return directory
