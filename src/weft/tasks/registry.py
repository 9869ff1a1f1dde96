"""The tasks: their names in run files, and the packages that have their records, imported when a run names one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from weft.tasks.spec import Task


class Registered(NamedTuple):
    """A task, as far as it is known without importing it."""

    package: str
    kind: str  # of model, unless another is asked for
    about: str  # in a few words


TASKS: Mapping[str, Registered] = {
    "lm": Registered("weft.tasks.lm", "gpt", "predict the next token of a text"),
    "seq2seq": Registered("weft.tasks.seq2seq", "seq2seq", "write a text for a text"),
    "classification": Registered("weft.tasks.classification", "lstm", "give a text, or two, a label, or several"),
    "tagging": Registered("weft.tasks.tagging", "lstm", "give each word of a sentence a tag"),
    "masked-lm": Registered("weft.tasks.masked_lm", "transformer", "predict tokens that are masked, from both sides"),
    "qa": Registered("weft.tasks.qa", "transformer", "answer a question by a part of a passage"),
}


def known_task(name: Any) -> Task[Any, Any] | None:
    """The record of a task that a file names; None where there is no such task."""
    return find_task(name) if isinstance(name, str) and name in TASKS else None


@cache
def find_task(name: str) -> Task[Any, Any]:
    """The record of a task."""
    found: Task[Any, Any] = import_module(f"{TASKS[name].package}.task").TASK
    return found
