"""Data of language models besides tokens: the tokens that precede a separate text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft import files
from weft.data.bos import FILE, find_bos, write_bos

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.tasks.data_spec import Note, Prepared


def choose_bos(config: RunConfig, prepared: Prepared, directory: Path, note: Note) -> None:
    """Choose and store the tokens that precede a separate text of a model of running text; lines follow <s>."""
    if config.data.read_as == "lines":
        return
    text = find_bos(prepared.columns["train"], prepared.vocabulary)
    if text is None:
        files.remove(directory / FILE)
        note("the training text has few line or sentence ends; scored and generated texts follow <s>")
    else:
        write_bos(directory, text, prepared.vocabulary)


def reads_windows(config: RunConfig) -> bool:
    """Whether a neural model is trained on windows of running text."""
    return config.arch != "ngram" and config.data.read_as == "windows"
