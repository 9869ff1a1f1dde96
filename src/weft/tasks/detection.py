"""A reading of files whose task and format nobody has stated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Known(NamedTuple):
    """What the user has stated about files."""

    task: str | None
    data: Mapping[str, Any]  # options of [data]

    def selected_columns(self) -> list[str | int]:
        columns = [value for name, value in self.data.items() if name.endswith("_column")]
        selected = [column for value in columns for column in (value if isinstance(value, list) else [value])]
        return [column for column in selected if isinstance(column, str | int)]


UNKNOWN = Known(None, {})
DETECTED = ("lm", "seq2seq", "classification", "tagging", "qa")  # tasks that files can be told to be for


@dataclass(frozen=True)
class Detection:
    """The task that files are for, and how to read them."""

    task: str
    data: dict[str, Any] = field(default_factory=dict)  # options of [data], without the files
    reason: str = ""  # one sentence
    alternatives: tuple[Detection, ...] = ()  # other readings, the most likely first

    def settings(self) -> list[str]:
        """The options that choose this reading, as KEY=VALUE: task=lm, data.read_as=lines."""
        return [f"task={self.task}", *(f"data.{name}={_toml_value(value)}" for name, value in self.data.items())]


def _toml_value(value: Any) -> str:
    """A value of a run file: a word stays as it is; everything else is written as TOML."""
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value, ensure_ascii=False)
