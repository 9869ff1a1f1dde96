"""What the run file of `weft init` needs to know about a task beyond its configuration classes. Each task has a `templates`
module, which is imported without the task: the command line lists architectures without torch and pydantic."""

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
    use: tuple[str, str] | None = None  # the command after training, and what it does
    fine_tuned: tuple[str, ...] = ()  # architectures that start from a pretrained encoder
    hidden: tuple[str, ...] = ()  # options that nobody should change in this task
    tokenizer_example: tuple[str, ...] = ()  # lines of TOML after [tokenizer], as a comment

    def commands(self, arch: str) -> list[tuple[str, str]]:
        """The example commands at the top."""
        train = FINE_TUNE if arch in self.fine_tuned else ("weft train run.toml", "train, or resume")
        commands = [("weft check run.toml", "check the data"), train, ("weft evaluate runs/run", "metrics on the test data")]
        return commands if self.use is None else [*commands, self.use]


@cache
def find_template(task: str) -> TaskTemplate:
    """The template of a task; a task without one has the splits and its default architecture."""
    module, default = f"{TASKS[task].package}.templates", TASKS[task].arch
    if find_spec(module) is None:
        return TaskTemplate((default,))
    template: TaskTemplate = import_module(module).TEMPLATE
    return template._replace(archs=(default, *(arch for arch in template.archs if arch != default)))
