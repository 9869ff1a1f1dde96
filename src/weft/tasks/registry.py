"""The registry of tasks. The package of a task is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from weft.tasks.spec import Task


class Registered(NamedTuple):
    """A task before it is imported."""

    package: str
    kind: str  # the default template of `weft init`
    about: str  # a short description


TASKS: Mapping[str, Registered] = {
    "lm": Registered("weft.tasks.lm", "gpt", "predict the next token of a text"),
    "seq2seq": Registered("weft.tasks.seq2seq", "seq2seq", "generate a target text from a source text"),
    "classification": Registered("weft.tasks.classification", "lstm", "assign one or more labels to a text or a pair of texts"),
    "tagging": Registered("weft.tasks.tagging", "lstm", "assign a tag to each word of a sentence"),
    "masked-lm": Registered("weft.tasks.masked_lm", "transformer", "predict masked tokens from both sides"),
    "qa": Registered("weft.tasks.qa", "transformer", "answer a question with a span of a passage"),
}


def known_task(name: Any) -> Task[Any, Any] | None:
    """The task with this name; None if there is none."""
    return find_task(name) if isinstance(name, str) and name in TASKS else None


@cache
def find_task(name: str) -> Task[Any, Any]:
    """The task with this name."""
    task: Task[Any, Any] = import_module(f"{TASKS[name].package}.task").TASK
    return task
