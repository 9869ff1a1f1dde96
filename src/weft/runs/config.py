"""The resolved configuration of a run: all options of a run file, with defaults."""

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
    """The resolved configuration: the sections of a run file with all options set and absolute paths."""

    task: str
    seed: int
    data: Any  # of the class `data_config` of the task
    tokenizer: Any  # of the class `tokenizer_config` of the task
    arch: str
    model: Any  # of the class `config_class` of the preset
    train: TrainConfig

    @property
    def spec(self) -> Task[Any, Any]:
        """The definition of the task."""
        return find_task(self.task)

    def tasks_where(self, condition: Callable[[Task[Any, Any]], bool]) -> list[str]:
        """The names of the tasks that meet a condition. This imports all tasks, so it is for error messages only."""
        return [name for name in TASKS if condition(find_task(name))]

    @property
    def preset(self) -> Preset:
        return self.spec.presets[self.arch]

    @cached_property
    def datasets(self) -> dict[str, Any]:
        """The data set of each split that is set. Cached, because data sets keep summaries of the files they have read."""
        datasets: dict[str, Any] = self.data.sources(Path())  # all paths are absolute
        return datasets

    def hide_test_data(self) -> None:
        """Evaluate on the validation data from now on."""
        self.datasets.pop("test", None)

    def to_dict(self) -> dict[str, Any]:
        model = {"arch": self.arch, **to_dict(self.model)}
        tokenizer = _from_tokenizer_files(to_dict(self.tokenizer))
        tables = {"data": to_dict(self.data), "tokenizer": tokenizer, "model": model, "train": to_dict(self.train)}
        return {"task": self.task, "seed": self.seed, "recommend": False, **tables}  # nothing is left out

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())


def _from_tokenizer_files(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """[tokenizer] as in a run file: with `file`, other options are left out, because the file determines them."""
    if "file" in tokenizer:
        return {"file": tokenizer["file"]}
    sides: dict[str, Any] = {side: _from_tokenizer_files(tokenizer[side]) for side in ("source", "target") if side in tokenizer}
    return sides or tokenizer
