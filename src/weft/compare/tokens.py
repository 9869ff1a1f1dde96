"""The one tokenizer of a comparison: trained once, then given to every run by its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import files
from weft.compare.fitting import with_option
from weft.runs.folder import RunFolder
from weft.runs.job import Watcher
from weft.runs.resolve import resolve
from weft.tasks.prepare import prepare
from weft.text.sides import tokenizer_files

TOKENIZER = "tokenizer"


def without_test(values: Mapping[str, Any]) -> dict[str, Any]:
    """The run file without test files: whoever trains or chooses by it can't read them. A share of train stays a share:
    what is cut off train must stay off it."""
    held = values["data"].get("test")
    return dict(values) if isinstance(held, float) else with_option(values, "data.test", None)


def train_once(out: Path, values: Sequence[Mapping[str, Any]], watcher: Watcher) -> Any:
    """The tokenizer of the comparison in `out`, and of labelled texts their labels; those of an earlier process are used."""
    folder = RunFolder(out / TOKENIZER)
    settings = [resolve(without_test(one), base=out) for one in values]
    if not (folder.path / files.MANIFEST).is_file():
        # of taggers some spell words: what they need is made if any does
        chosen = next((one for one in settings if one.spec.data.extended(one)), settings[0])
        with files.building(folder.path) as place:
            prepare(chosen.spec, chosen, RunFolder(place), watcher)
            files.remove(place / "data")  # each run has its own
    files.verify(folder.path)
    return settings[0].spec.data.load(folder)


def given(out: Path) -> dict[str, Any]:
    """[tokenizer] of every run of the comparison in `out`."""
    place = out.resolve() / TOKENIZER  # as every process sees it, wherever it was started
    found = {path.name.removesuffix(".json"): {"file": str(path)} for path in tokenizer_files(place)}
    if "tokenizer" in found:
        return found["tokenizer"]
    return {side: found[f"tokenizer.{side}"] for side in ("source", "target")}
