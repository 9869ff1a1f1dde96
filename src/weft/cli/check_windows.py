"""`weft check --windows`: which windows of running text training reads, with their inputs and labels."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.text.columns import columns

if TYPE_CHECKING:
    from weft.data.order import Windows
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer

SHOWN = 6  # tokens of an input or label in a row; of longer ones the first and the last


def refuse_others(settings: Settings) -> None:
    """Refuse a run file whose training reads no windows."""
    if not settings.spec.data.windows(settings):
        raise UsageError("--windows: is for networks of task 'lm' that read running text as windows; drop it")


def drawn(order: Windows, tokenizer: Tokenizer, count: int, epoch: int = 0) -> dict[str, Any]:
    """The first windows of an epoch, in the order of the text."""
    starts = order.grid(epoch)
    rows = []
    for start in starts[:count].tolist():
        tokens = [tokenizer.show(number) for number in order.rows_at([start])[0].tolist()]
        rows.append({"token": start, "input": tokens[:-1], "label": tokens[1:]})
    return {"window": order.window, "stride": order.stride, "count": len(starts), "windows": rows}


def windows_of(settings: Settings, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """The first windows that training reads in its first epoch, in the order of the text."""
    from weft.data.corpus import write_corpus
    from weft.data.order import Windows

    data = settings.data
    with TemporaryDirectory() as place:
        corpus = write_corpus(settings.datasets["train"], tokenizer, Path(place), "train")
        order = Windows(corpus, window=data.window, stride=data.stride or data.window, rows=1, seed=settings.seed)
        return drawn(order, tokenizer, count)


def _cell(tokens: list[str]) -> str:
    from weft.text.gate import quoted

    first, last = SHOWN - 2, 2
    shown = [quoted(token) for token in tokens]
    return " ".join(shown if len(shown) <= SHOWN else [*shown[:first], "...", *shown[-last:]])


def as_table(found: dict[str, Any]) -> str:
    """The same for people; token 0 is <s>, which stands before the text."""
    rows = [["from token", "input", "label"]]
    rows += [[str(one["token"]), _cell(one["input"]), _cell(one["label"])] for one in found["windows"]]
    told = f"{found['count']:,} windows of {found['window']:,} tokens, {found['stride']:,} apart, in the first epoch"
    return f"{told}, which reads them in random order:\n{columns(rows, left=3)}"
