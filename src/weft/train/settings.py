"""From a run file to settings that name every option, and back to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import Field

from weft.config import OneOf, Table, no_such, plain, read_table
from weft.data.source import Source
from weft.data.tables import DataTable
from weft.errors import ConfigError
from weft.text.tokenizers import TokenizerTable
from weft.train.presets import TASKS, Preset
from weft.train.tables import TrainTable

T = TypeVar("T", bound=Table)


class RunTable(Table):
    """The top of a run file; what [model] and [train] hold depends on the kind."""

    task: Annotated[str, OneOf(TASKS, "task")]
    seed: int = Field(0, ge=0, lt=2**31)
    data: DataTable
    tokenizer: TokenizerTable = TokenizerTable()
    model: dict[str, Any]
    train: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """A run file with everything filled in."""

    task: str
    seed: int
    data: DataTable
    tokenizer: TokenizerTable
    kind: str
    model: Any  # a table of the kind's own type, filled
    train: TrainTable

    @property
    def preset(self) -> Preset:
        return TASKS[self.task][self.kind]

    def sources(self) -> dict[str, Source]:
        """The text of each split that is given; all paths are absolute by now."""
        return self.data.sources(Path())

    def to_dict(self) -> dict[str, Any]:
        model = {"kind": self.kind, **plain(self.model)}
        file = self.tokenizer.file  # a file says itself what it is
        tokenizer = plain(self.tokenizer) if file is None else {"file": file}
        tables = {"data": plain(self.data), "tokenizer": tokenizer, "model": model, "train": plain(self.train)}
        return {"task": self.task, "seed": self.seed, **tables}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())


def resolve(values: Mapping[str, Any], *, base: Path) -> Settings:
    """Table defaults, then the preset's values, then the run file's; paths are seen from `base`."""
    run = read_table(RunTable, values, at="")
    options = dict(run.model)
    presets = TASKS[run.task]
    if "kind" not in options:
        raise ConfigError(f"model.kind: is needed and not given; known: {', '.join(presets)}")
    kind = options.pop("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"model.kind: must be a valid string, not {kind!r}")
    if kind not in presets:
        raise ConfigError(f"model.kind: {no_such('kind', kind, presets)}")
    preset = presets[kind]
    model = read_table(preset.table, {**preset.values, **options}, at="model")
    train = read_table(TrainTable, {**preset.train, **run.train}, at="train")
    data, tokenizer = _placed(run.data.resolved(), base), _placed(run.tokenizer, base)
    settings = Settings(run.task, run.seed, data, tokenizer, kind, model.filled(), train.filled())
    preset.family.check(settings)
    return settings


def _utf_8(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: its name is not UTF-8, so no run file can hold it; rename it") from None
    return path


def _placed(table: T, base: Path) -> T:
    """The same table with absolute paths: a run is resumed and evaluated from anywhere."""
    named = {name: getattr(table, name) for name in ("train", "valid", "test", "file") if name in type(table).model_fields}

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(part) for part in value]
        return _utf_8(str((base / value).absolute())) if isinstance(value, str) else value

    return table.model_copy(update={name: absolute(value) for name, value in named.items()})
