"""A run made of a model that another program trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w
from numpy.typing import NDArray

from weft.data.opening import write_opening
from weft.errors import ConfigError, ModelError, UsageError
from weft.runs.folder import RunFolder, make_folder
from weft.runs.resolve import resolve
from weft.runs.settings import Settings
from weft.runs.staging import staged
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


class Plan(NamedTuple):
    """A run to be: what its file says, its tensors once its settings are known, what is not as it was."""

    values: Mapping[str, Any]  # the run file, without its tokenizer
    tensors: Callable[[Settings], Mapping[str, Tensor] | Mapping[str, NDArray[Any]]]
    notes: list[str]
    opening: str | None = None  # what a text by itself comes after; None: <s>


class Imported(NamedTuple):
    folder: RunFolder
    notes: list[str]  # what is not as it was


def _written(values: Mapping[str, Any], where: Path) -> str:
    """The run file, which says where the model came from: it has no training data that would."""
    return f"# imported from {str(where.absolute())!a}\n{tomli_w.dumps(values)}"


def make_run(plan: Plan, tokenizer: Tokenizer, out: Path, *, where: Path) -> Imported:
    """The run folder, made in one step; `where` is the file that says what the model is."""
    folder = make_folder(out)
    folder.refuse_strangers()
    if folder.resolved.is_file():
        raise UsageError(f"{out}: holds a run already; choose another --out")
    values = {**plan.values, "tokenizer": {"file": str(folder.tokenizer.absolute())}}
    try:
        settings = resolve(values, base=Path())
    except ConfigError as error:
        raise ModelError(f"{where}: makes no model of weft: {error}") from None
    tensors = plan.tensors(settings)
    with staged(out, last=folder.resolved.name) as place:
        made = RunFolder(place)
        made.begin(settings, _written(values, where), fresh=False)
        made.note_environment()
        tokenizer.save(made.tokenizer)
        if plan.opening is not None:
            write_opening(place, plan.opening, tokenizer)
        made.write_weights(tensors, tokenizer.hash, 0)
    return Imported(folder, plan.notes)
