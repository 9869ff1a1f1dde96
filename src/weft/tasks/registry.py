"""The tasks: their names in run files, and the modules that have their records, imported when a run names one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.tasks.spec import Task

TASKS: Mapping[str, str] = {
    "lm": "weft.tasks.lm.task",
    "translate": "weft.tasks.seq2seq.task",
    "classify": "weft.tasks.classification.task",
    "tag": "weft.tasks.tagging.task",
    "masked-lm": "weft.tasks.masked_lm.task",
    "span": "weft.tasks.qa.task",
}


def known_task(name: Any) -> Task[Any, Any] | None:
    """The record of a task that a file names; None where there is no such task."""
    return find_task(name) if isinstance(name, str) and name in TASKS else None


@cache
def find_task(name: str) -> Task[Any, Any]:
    """The record of a task."""
    found: Task[Any, Any] = import_module(TASKS[name]).TASK
    return found
