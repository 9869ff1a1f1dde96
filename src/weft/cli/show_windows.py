"""`weft check --show-windows`: which windows of running text training reads, with their inputs and labels."""

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

MAX_TOKENS = 6  # tokens of an input or label in a row; of longer ones the first and the last


def check_applies(config: RunConfig) -> None:
    """Refuse a run file whose training reads no windows."""
    if not config.spec.data.windows(config):
        raise UsageError("--show-windows", "is for networks of task 'lm' that read running text as windows", "drop it")


def windows_to_json(order: Windows, tokenizer: Tokenizer, count: int, epoch: int = 0) -> dict[str, Any]:
    """The first windows of an epoch, in the order of the text."""
    starts = order.grid(epoch)
    rows = []
    for start in starts[:count].tolist():
        tokens = [tokenizer.token_text(number) for number in order.rows_at([start])[0].tolist()]
        rows.append({"token": start, "input": tokens[:-1], "label": tokens[1:]})
    return {"window": order.context_length, "stride": order.stride, "count": len(starts), "windows": rows}


def windows_of(config: RunConfig, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """The first windows that training reads in its first epoch, in the order of the text."""
    from weft.data.batching import Windows
    from weft.data.corpus import write_corpus

    data = config.data
    with TemporaryDirectory() as place:
        corpus = write_corpus(config.datasets["train"], tokenizer, Path(place), "train")
        order = Windows(
            corpus, context_length=data.context_length, stride=data.stride or data.context_length, rows=1, seed=config.seed
        )
        return windows_to_json(order, tokenizer, count)


def _cell(tokens: list[str]) -> str:
    from weft.text.reading import quote

    first, last = MAX_TOKENS - 2, 2
    shown = [quote(token) for token in tokens]
    return " ".join(shown if len(shown) <= MAX_TOKENS else [*shown[:first], "...", *shown[-last:]])


def as_table(found: dict[str, Any]) -> str:
    """The same for people; token 0 is <s>, which stands before the text."""
    rows = [["from token", "input", "label"]]
    rows += [[str(one["token"]), _cell(one["input"]), _cell(one["label"])] for one in found["windows"]]
    told = f"{found['count']:,} windows of {found['window']:,} tokens, {found['stride']:,} apart, in the first epoch"
    return f"{told}, which reads them in random order:\n{columns(rows, left=3)}"
