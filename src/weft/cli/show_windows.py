"""`weft check --show-windows`: the windows of running text that training reads, with inputs and targets; and
`weft check --show-examples`: examples with noise."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.data.batching import Windows
    from weft.runs.config import RunConfig
    from weft.text.tokenizers import Tokenizer

MAX_TOKENS = 6  # of an input or target in a row; longer ones are abbreviated in the middle


def check_applies(config: RunConfig) -> None:
    """Refuse a run file whose training reads no windows."""
    if not config.spec.data.uses_windows(config):
        raise UsageError("show_windows", "requires a network of task 'lm' that reads running text as windows")


def examples_of(config: RunConfig, tokenizer: Tokenizer, count: int) -> list[dict[str, str]]:
    """The first training examples, as training reads them in the first epoch."""
    make = config.spec.data.training_examples
    if make is None:
        raise UsageError("show_examples", f"not available for task {config.task!r}, which reads examples as they are")
    return [dict(example) for example in make(config, tokenizer, count)]


def examples_as_table(examples: list[dict[str, str]]) -> str:
    """The examples as a table with a column for each side."""
    from weft.text.reading import preview

    names = list(examples[0]) if examples else []
    rows = [names, *([preview(example[name]) for name in names] for example in examples)]
    return columns(rows, left=len(names))


def windows_to_json(order: Windows, tokenizer: Tokenizer, count: int, epoch: int = 0) -> dict[str, Any]:
    """The first windows of an epoch, in the order of the text."""
    starts = order.grid(epoch)
    rows = []
    for start in starts[:count].tolist():
        tokens = [tokenizer.token_text(token_id) for token_id in order.rows_at([start])[0].tolist()]
        rows.append({"token": start, "input": tokens[:-1], "label": tokens[1:]})
    return {"context_length": order.context_length, "stride": order.stride, "count": len(starts), "windows": rows}


def windows_of(config: RunConfig, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """The first windows of the first training epoch, in the order of the text."""
    from weft.data.batching import Windows
    from weft.data.corpus import write_corpus

    data = config.data
    with TemporaryDirectory() as directory:
        corpus = write_corpus(config.datasets["train"], tokenizer, Path(directory), "train")
        order = Windows(
            corpus, context_length=data.context_length, stride=data.stride or data.context_length, rows=1, seed=config.seed
        )
        return windows_to_json(order, tokenizer, count)


def _cell(tokens: list[str]) -> str:
    from weft.text.reading import quote

    first, last = MAX_TOKENS - 2, 2
    quoted = [quote(token) for token in tokens]
    return " ".join(quoted if len(quoted) <= MAX_TOKENS else [*quoted[:first], "...", *quoted[-last:]])


def as_table(windows: dict[str, Any]) -> str:
    """The windows as a table; token 0 is <s>, before the text."""
    rows = [["from token", "input", "label"]]
    rows += [[str(row["token"]), _cell(row["input"]), _cell(row["label"])] for row in windows["windows"]]
    size, stride = windows["context_length"], windows["stride"]
    head = f"{windows['count']:,} windows of {size:,} tokens, stride {stride:,}, in random order in the first epoch:"
    return f"{head}\n{columns(rows, left=3)}"
