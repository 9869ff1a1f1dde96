"""How BLEU splits the outputs of all runs of a comparison: in one way, or their scores would not compare."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from weft.errors import ModelError, UsageError
from weft.metrics.bleu_tokenizers import check_tokenizer
from weft.runs.load import load
from weft.runs.run import AnyRun
from weft.tasks.registry import find_task


def check_tokenizer_option(task: str, tokenize: str | None) -> None:
    """Refuse a tokenizer that is not there, or that is asked of runs without outputs."""
    if tokenize is None:
        return
    if find_task(task).compare.tokenize is None:
        raise UsageError("--tokenize", f"is for runs that write outputs, and these are of task {task!r}", "drop it")
    check_tokenizer(tokenize)


def one_tokenizer(paths: Iterable[Path]) -> str | None:
    """The automatic choice for runs that write outputs, None for others, or where they are of several tasks."""
    runs = list[AnyRun]()
    for path in paths:
        with suppress(ModelError):  # whoever measures it tells of that
            runs.append(load(path))
    if not runs or any(run.task is not runs[0].task for run in runs):
        return None
    choose = runs[0].task.compare.tokenize
    return None if choose is None else choose(runs)
