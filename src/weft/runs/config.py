"""A run file with everything filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from weft.config import to_dict
from weft.tasks.registry import TASKS, find_task
from weft.training.config import TrainConfig

if TYPE_CHECKING:
    from weft.tasks.spec import Preset, Task


@dataclass(frozen=True)
class RunConfig:
    """A run file with everything filled in."""

    task: str
    seed: int
    data: Any  # tables of the task's own types
    tokenizer: Any
    arch: str
    model: Any  # a table of the kind's own type, filled
    train: TrainConfig

    @property
    def spec(self) -> Task[Any, Any]:
        """The record of the task."""
        return find_task(self.task)

    def tasks_where(self, holds: Callable[[Task[Any, Any]], bool]) -> list[str]:
        """The tasks of whose record something holds: for messages, for it imports all of them."""
        return [name for name in TASKS if holds(find_task(name))]

    @property
    def preset(self) -> Preset:
        return self.spec.presets[self.arch]

    @cached_property
    def datasets(self) -> dict[str, Any]:
        """The data of each split that is given; all paths are absolute by now. What was read of a file is kept with them."""
        found: dict[str, Any] = self.data.sources(Path())
        return found

    def to_dict(self) -> dict[str, Any]:
        model = {"arch": self.arch, **to_dict(self.model)}
        tokenizer = _from_tokenizer_files(to_dict(self.tokenizer))
        tables = {"data": to_dict(self.data), "tokenizer": tokenizer, "model": model, "train": to_dict(self.train)}
        return {"task": self.task, "seed": self.seed, **tables}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())


def _from_tokenizer_files(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer table as a file says it: one that names a file says nothing else, for the file knows what it is."""
    if "file" in tokenizer:
        return {"file": tokenizer["file"]}
    sides: dict[str, Any] = {side: _from_tokenizer_files(tokenizer[side]) for side in ("source", "target") if side in tokenizer}
    return sides or tokenizer
