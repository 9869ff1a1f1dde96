"""Templates of run files for `weft init`. The `templates` module of a task is imported without the task, so that the command
line lists architectures without torch and pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from weft.tasks.registry import TASKS

SPLITS: Mapping[str, Any] = {"train": "train.tsv", "valid": 0.1, "test": 0.1}
FINE_TUNE = ("weft train run.toml --init-from RUN", "fine-tune a pretrained encoder")


class TaskTemplate(NamedTuple):
    """The parts of a run file that do not follow from the configuration classes."""

    archs: tuple[str, ...]  # in the order in which they are listed; the first is the default
    data: Mapping[str, Any] = SPLITS  # options of [data] that are set
    files: str = ""  # which files `data.train` may name
    use: tuple[str, str] | None = None  # a command to use the model after training, and its description
    fine_tuned: tuple[str, ...] = ()  # architectures that start from a pretrained encoder
    hidden: tuple[str, ...] = ()  # options that have no use in this task
    tokenizer_example: tuple[str, ...] = ()  # lines of TOML after [tokenizer], as a comment

    def commands(self, arch: str) -> list[tuple[str, str]]:
        """Example commands for the top of the run file, with descriptions."""
        train = FINE_TUNE if arch in self.fine_tuned else ("weft train run.toml", "train, or resume")
        commands = [("weft check run.toml", "check the data"), train, ("weft evaluate runs/run", "metrics on the test data")]
        return commands if self.use is None else [*commands, self.use]


@cache
def find_template(task: str) -> TaskTemplate:
    """The template of a task; by default, the usual splits and the default architecture."""
    module, default = f"{TASKS[task].package}.templates", TASKS[task].arch
    if find_spec(module) is None:
        return TaskTemplate((default,))
    template: TaskTemplate = import_module(module).TEMPLATE
    return template._replace(archs=(default, *(arch for arch in template.archs if arch != default)))
