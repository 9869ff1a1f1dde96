"""How BLEU splits the outputs of all runs of a comparison: in one way, or their scores would not compare."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.errors import ModelError, UsageError
from weft.metrics.bleu_tokenizers import automatic, check_tokenizer
from weft.runs.eval_data import held_source
from weft.runs.load import load
from weft.tasks.seq2seq.data import references as references_of


def check_wanted(task: str, tokenize: str | None) -> None:
    """Refuse a tokenizer that is not there, or that is asked of runs without outputs."""
    if tokenize is None:
        return
    if task != "translate":
        raise UsageError(f"--tokenize: is for runs that write outputs, and these are of task {task!r}; drop it")
    check_tokenizer(tokenize)


def one_tokenizer(paths: Iterable[Path]) -> str | None:
    """The automatic choice for runs that write outputs, None for others: `none` where the targets of all are tokens with
    spaces between them, else by what the references of the first are written in."""
    runs = list[Any]()
    for path in paths:
        with suppress(ModelError):  # whoever measures it tells of that
            runs.append(load(path))
    if not runs or any(run.settings.task != "translate" for run in runs):
        return None
    spaced = all(run.vocabulary.target.kind == "space" for run in runs)
    references = () if spaced else references_of(held_source(runs[0].folder, runs[0].settings, None))
    return automatic(references, spaced=spaced)
