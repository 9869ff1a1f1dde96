"""The BLEU tokenizer of a comparison: the same for all runs, so that their scores are comparable."""

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
    """Raise UsageError for an unknown BLEU tokenizer, or for a task without text outputs."""
    if tokenize is None:
        return
    if find_task(task).compare.bleu_tokenizer is None:
        raise UsageError("tokenize", f"not available for task {task!r}")
    check_tokenizer(tokenize)


def common_tokenizer(paths: Iterable[Path]) -> str | None:
    """The automatic choice for seq2seq runs; None for other tasks, or if the tasks differ."""
    runs = list[AnyRun]()
    for path in paths:
        with suppress(ModelError):  # the evaluation reports it
            runs.append(load(path))
    if not runs or any(run.spec is not runs[0].spec for run in runs):
        return None
    choose = runs[0].spec.compare.bleu_tokenizer
    return None if choose is None else choose(runs)
