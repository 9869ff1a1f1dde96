"""The registry of tasks. The package of a task is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from weft.tasks.spec import Task


class Registered(NamedTuple):
    """What is known about a task without importing it."""

    package: str
    arch: str  # the default architecture
    about: str


TASKS: Mapping[str, Registered] = {
    "lm": Registered("weft.tasks.lm", "gpt", "predict the next token"),
    "seq2seq": Registered("weft.tasks.seq2seq", "lstm-input-feeding", "predict a target text from a source text"),
    "classification": Registered("weft.tasks.classification", "lstm", "predict the label of a text or a pair of texts"),
    "tagging": Registered("weft.tasks.tagging", "lstm", "predict a tag for each word of a sentence"),
    "masked-lm": Registered("weft.tasks.masked_lm", "transformer", "predict masked tokens"),
    "qa": Registered("weft.tasks.qa", "transformer", "predict the answer to a question in a passage"),
}


def known_task(name: Any) -> Task[Any, Any] | None:
    """The task with this name; None if there is none."""
    return find_task(name) if isinstance(name, str) and name in TASKS else None


@cache
def find_task(name: str) -> Task[Any, Any]:
    """The task with this name."""
    task: Task[Any, Any] = import_module(f"{TASKS[name].package}.task").TASK
    return task
