"""A run made of a model that another program trained."""

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
    """A run to be: what its file says, its tensors once its settings are known, what is not as it was."""

    values: Mapping[str, Any]  # the run file, without its tokenizer
    tensors: Callable[[RunConfig], Mapping[str, Tensor] | Mapping[str, NDArray[Any]]]
    notes: list[str]
    bos_text: str | None = None  # what a text by itself comes after; None: <s>


class ImportedRun(NamedTuple):
    run_dir: RunDir
    notes: list[str]  # what is not as it was


def _written(values: Mapping[str, Any], where: Path) -> str:
    """The run file, which says where the model came from: it has no training data that would."""
    return f"# imported from {str(where.absolute())!a}\n{tomli_w.dumps(values)}"


def make_run(plan: ImportPlan, tokenizer: Tokenizer, output_dir: Path, *, where: Path) -> ImportedRun:
    """The run folder, made in one step; `where` is the file that says what the model is."""
    directory = make_directory(output_dir)
    directory.check_is_run_dir()
    if directory.resolved.is_file():
        raise UsageError(output_dir, "holds a run already", "choose another --output-dir")
    values = {**plan.values, "tokenizer": {"file": str(directory.tokenizer.absolute())}}
    try:
        config = resolve(values, base=Path())
    except ConfigError as error:
        raise ModelError(where, f"makes no model of weft: {error}") from None
    tensors = plan.tensors(config)
    with staged_directory(output_dir, last=directory.resolved.name) as place:
        made = RunDir(place)
        made.begin(config, _written(values, where), overwrite=False)
        made.write_environment()
        tokenizer.save(made.tokenizer)
        if plan.bos_text is not None:
            write_bos(place, plan.bos_text, tokenizer)
        made.write_weights(tensors, tokenizer.hash, 0)
    return ImportedRun(directory, plan.notes)
