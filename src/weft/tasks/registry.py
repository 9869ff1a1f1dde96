"""The registry of tasks. The package of a task is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from weft.tasks.spec import Task


class TaskEntry(NamedTuple):
    """Where a task is defined, and what can be listed without importing it."""

    package: str
    arch: str  # the default architecture
    description: str


TASKS: Mapping[str, TaskEntry] = {
    "lm": TaskEntry("weft.tasks.lm", "gpt", "predict the next token"),
    "seq2seq": TaskEntry("weft.tasks.seq2seq", "lstm-input-feeding", "predict a target text from a source text"),
    "classification": TaskEntry("weft.tasks.classification", "lstm", "predict the label of a text or a pair of texts"),
    "tagging": TaskEntry("weft.tasks.tagging", "lstm", "predict a tag for each word of a sentence"),
    "masked-lm": TaskEntry("weft.tasks.masked_lm", "transformer", "predict masked tokens"),
    "denoising": TaskEntry("weft.tasks.denoising", "transformer", "restore corrupted texts, to pre-train encoder-decoders"),
    "qa": TaskEntry("weft.tasks.qa", "transformer", "predict the answer to a question in a passage"),
    "asr": TaskEntry("weft.tasks.asr", "lstm", "recognize speech: predict the text of a recording"),
    "captioning": TaskEntry("weft.tasks.captioning", "transformer", "describe images and video"),
    "word-vectors": TaskEntry("weft.tasks.word_vectors", "skip-gram", "learn vectors of words from the words around them"),
    "reward-model": TaskEntry("weft.tasks.reward_model", "gru", "learn which of two texts is preferred"),
    "instruction-tuning": TaskEntry("weft.tasks.instruction_tuning", "gpt", "learn to respond to instructions"),
    "dpo": TaskEntry("weft.tasks.dpo", "gpt", "learn from preferences between responses"),
    "policy-gradient": TaskEntry("weft.tasks.policy_gradient", "gpt", "learn from rewards of own responses"),
}


def known_task(name: Any) -> Task[Any, Any] | None:
    """The task with this name; None if there is none."""
    return find_task(name) if isinstance(name, str) and name in TASKS else None


@cache
def find_task(name: str) -> Task[Any, Any]:
    """The task with this name."""
    task: Task[Any, Any] = import_module(f"{TASKS[name].package}.task").TASK
    return task
