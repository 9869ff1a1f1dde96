"""The tokenizer of a comparison: trained once, then every run reads it from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import files
from weft.comparison.applicable_options import with_option
from weft.runs.job import JobCallback
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir
from weft.tasks.prepare import prepare
from weft.text.tokenizer_pair import tokenizer_files

TOKENIZER = "tokenizer"


def without_test(values: Mapping[str, Any]) -> dict[str, Any]:
    """The run file without test files, so that training and tuning cannot read them. A test fraction of
    the training data stays: those examples must not become training data."""
    test = values["data"].get("test")
    return dict(values) if isinstance(test, float) else with_option(values, "data.test", None)


def train_once(output_dir: Path, values: Sequence[Mapping[str, Any]], callback: JobCallback) -> Any:
    """Train the tokenizer of the comparison in `output_dir`, and collect the labels of labeled texts, unless they exist."""
    directory = RunDir(output_dir / TOKENIZER)
    configs = [resolve(without_test(run_file), base=output_dir) for run_file in values]
    if not (directory.path / files.MANIFEST).is_file():
        # some taggers have a character encoder: if any does, its vocabulary is built
        chosen = next((config for config in configs if config.spec.data.has_extended_vocabulary(config)), configs[0])
        with files.atomic_directory(directory.path) as path:
            prepare(chosen.spec, chosen, RunDir(path), callback)
            files.remove(path / "data")  # each run prepares its own
    files.verify(directory.path)
    return configs[0].spec.data.load(directory)


def tokenizer_table(output_dir: Path) -> dict[str, Any]:
    """The [tokenizer] table of every run of the comparison in `output_dir`."""
    directory = output_dir.resolve() / TOKENIZER  # absolute: processes may have different working directories
    tables = {path.name.removesuffix(".json"): {"file": str(path)} for path in tokenizer_files(directory)}
    if "tokenizer" in tables:
        return tables["tokenizer"]
    return {side: tables[f"tokenizer.{side}"] for side in ("source", "target")}
