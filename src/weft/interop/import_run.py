"""Create a run from a model that another program trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w
from numpy.typing import NDArray

from weft.data.bos import write_bos
from weft.errors import ConfigError, ModelError, UsageError
from weft.runs.atomic_dir import staged_directory
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir, make_directory
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


class ImportPlan(NamedTuple):
    """The content of an imported run: run file, tensors for the resolved configuration, and notes on differences."""

    values: Mapping[str, Any]  # the run file, without its tokenizer
    tensors: Callable[[RunConfig], Mapping[str, Tensor] | Mapping[str, NDArray[Any]]]
    notes: list[str]
    bos_text: str | None = None  # precedes a new text; None: <s>


class ImportedRun(NamedTuple):
    run_dir: RunDir
    notes: list[str]  # differences from the original


def _run_file(values: Mapping[str, Any], source: Path) -> str:
    """The run file, with a comment on the origin of the model."""
    return f"# imported from {str(source.absolute())!a}\n{tomli_w.dumps(values)}"


def make_run(plan: ImportPlan, tokenizer: Tokenizer, output_dir: Path, *, source: Path) -> ImportedRun:
    """Create the run directory atomically; `source` is the file that describes the original model."""
    directory = make_directory(output_dir)
    directory.check_is_run_dir()
    if directory.resolved.is_file():
        raise UsageError(output_dir, "already contains a run", "choose another `output_dir`")
    values = {**plan.values, "tokenizer": {"file": str(directory.tokenizer.absolute())}}
    try:
        config = resolve(values, base=Path())
    except ConfigError as error:
        raise ModelError(source, f"not a valid model: {error}") from None
    tensors = plan.tensors(config)
    with staged_directory(output_dir, last=directory.resolved.name) as staging_dir:
        staged = RunDir(staging_dir)
        staged.begin(config, _run_file(values, source), overwrite=False)
        staged.write_environment()
        tokenizer.save(staged.tokenizer)
        if plan.bos_text is not None:
            write_bos(staging_dir, plan.bos_text, tokenizer)
        staged.write_weights(tensors, tokenizer.hash, 0)
    return ImportedRun(directory, plan.notes)
