"""Run files to start from: those of each task stand in its directory, and are found without importing the task, which would
import torch.

Options behind a `#` are the defaults; a test holds all of it to the tables, which live beside models, and so behind torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol

from weft.tasks.registry import TASKS
from weft.tasks.template_parts import TOP


class Template(Protocol):
    """What writes the run file of a kind."""

    def text(self, name: str) -> str: ...


MINIMAL = """
task = "{task}"                    # {about}
seed = 0

[data]
train = "train.tsv"
valid = 0.1                        # files, or the share of train that is taken for it

[model]
arch = "{kind}"
"""


class MinimalTemplate(NamedTuple):
    """The run file of a task that has no templates of its own: what every run file has."""

    task: str

    def text(self, name: str) -> str:
        return MINIMAL.format(task=self.task, about=TASKS[self.task].about, kind=name)


@cache
def find_templates(task: str) -> Mapping[str, Template]:
    """The templates of a task by the kind of model, that of its default first."""
    module, first = f"{TASKS[task].package}.templates", TASKS[task].kind
    if find_spec(module) is None:
        return {first: MinimalTemplate(task)}
    found: Mapping[str, Template] = import_module(module).TEMPLATES
    return {first: found[first], **found}


def template(task: str, kind: str) -> str:
    """The run file for a kind of model."""
    return TOP + find_templates(task)[kind].text(kind)
