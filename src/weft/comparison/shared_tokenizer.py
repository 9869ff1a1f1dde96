"""The one tokenizer of a comparison: trained once, then given to every run by its file."""

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
    """The run file without test files: whoever trains or chooses by it can't read them. A share of train stays a share:
    what is cut off train must stay off it."""
    held = values["data"].get("test")
    return dict(values) if isinstance(held, float) else with_option(values, "data.test", None)


def train_once(output_dir: Path, values: Sequence[Mapping[str, Any]], callback: JobCallback) -> Any:
    """The tokenizer of the comparison in `out`, and of labelled texts their labels; those of an earlier process are used."""
    directory = RunDir(output_dir / TOKENIZER)
    config = [resolve(without_test(one), base=output_dir) for one in values]
    if not (directory.path / files.MANIFEST).is_file():
        # of taggers some spell words: what they need is made if any does
        chosen = next((one for one in config if one.spec.data.extended(one)), config[0])
        with files.atomic_directory(directory.path) as place:
            prepare(chosen.spec, chosen, RunDir(place), callback)
            files.remove(place / "data")  # each run has its own
    files.verify(directory.path)
    return config[0].spec.data.load(directory)


def given_tokenizer(output_dir: Path) -> dict[str, Any]:
    """[tokenizer] of every run of the comparison in `out`."""
    place = output_dir.resolve() / TOKENIZER  # as every process sees it, wherever it was started
    found = {path.name.removesuffix(".json"): {"file": str(path)} for path in tokenizer_files(place)}
    if "tokenizer" in found:
        return found["tokenizer"]
    return {side: found[f"tokenizer.{side}"] for side in ("source", "target")}
