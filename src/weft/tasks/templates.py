"""Run files to start from: those of each task stand in its directory, and are found without importing the task, which would
import torch.

Options behind a `#` are the defaults; a test holds all of it to the tables, which live beside models, and so behind torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Protocol

from weft.tasks.registry import TASKS
from weft.tasks.template_parts import TOP


class Template(Protocol):
    """What writes the run file of a kind."""

    def text(self, name: str) -> str: ...


@cache
def find_templates(task: str) -> Mapping[str, Template]:
    """The templates of a task by the kind of model, that of its default first."""
    found: Mapping[str, Template] = import_module(f"{TASKS[task].package}.templates").TEMPLATES
    first = TASKS[task].kind
    return {first: found[first], **found}


def template(task: str, kind: str) -> str:
    """The run file for a kind of model."""
    return TOP + find_templates(task)[kind].text(kind)
