"""ARPA files as runs, and runs as ARPA files: what lmplz, SRILM or weft itself estimated is evaluated, compared and sampled
from like any other language model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.data.bos import read_bos
from weft.errors import ModelError, UsageError
from weft.interop.arpa import read_arpa, write_arpa
from weft.interop.import_run import ImportedRun, ImportPlan, make_run
from weft.models.ngram import FROM_FILE, NgramConfig, NgramModel
from weft.runs.run import AnyRun
from weft.runs.run_dir import open_run_dir
from weft.text.tokenizers import Tokenizer


def import_arpa(source: Path, output_dir: Path, *, tokenizer_from: Path | None = None) -> ImportedRun:
    """The model of an ARPA file as a run of task 'lm'. Its words stand between spaces, unless a run lends the tokenizer that
    made them. A model that has seen </s> reads lines, any other running text."""
    if source.is_dir():
        raise ModelError(source, "is a folder", "an ARPA model is a file")
    lent = None if tokenizer_from is None else _tokenizer(tokenizer_from)
    model, tokenizer = read_arpa(source, tokenizer=lent)
    if tokenizer_from is None and any(_holds_space(tokenizer.id_to_token(number)) for number in range(tokenizer.vocab_size)):
        raise ModelError(
            source,
            "its words hold white space, so a text can't be split into them by spaces",
            "give the run whose tokenizer made it with --tokenizer-from",
        )
    ends = _has_seen(model, tokenizer.eos_id)
    data = {"train": False, "read_as": "lines" if ends else "windows"}
    table = {"arch": "ngram", "order": model.order, "smoothing": FROM_FILE}
    notes = [] if ends else ["no line ended where it was counted (no n-gram ends in </s>), so it reads running text"]
    if tokenizer_from is None and _looks_like_pieces(tokenizer):
        notes.append(
            "its words look like pieces of words: a text must be split into them already, or --tokenizer-from name the run"
        )
    opening = None if ends or tokenizer_from is None else _opening(tokenizer_from, tokenizer)
    plan = ImportPlan({"task": "lm", "data": data, "model": table}, lambda config: model.arrays(), notes, opening)
    return make_run(plan, tokenizer, output_dir, where=source)


def _has_seen(model: NgramModel, token: int) -> bool:
    """Whether a token was counted; a single one has a probability even if it was not."""
    if model.order == 1:
        return bool(np.isfinite(model.levels[0].log_prob[token]))
    return bool((model.levels[1].keys % model.size == token).any())


def _tokenizer(run: Path) -> Tokenizer:
    directory = open_run_dir(run)
    if not directory.tokenizer.is_file():
        raise UsageError("--tokenizer-from", f"{run} has no tokenizer.json")
    return Tokenizer.load(directory.tokenizer)


def _opening(run: Path, tokenizer: Tokenizer) -> str | None:
    """What texts of the run that lends its tokenizer come after."""
    tokens = read_bos(run, tokenizer)
    return None if tokens == [tokenizer.bos_id] else tokenizer.decode(tokens)


def _looks_like_pieces(tokenizer: Tokenizer) -> bool:
    """Whether several words begin as the pieces of usual subword tokenizers do."""
    return (
        sum(tokenizer.id_to_token(number).startswith(("\u0120", "\u2581", "##")) for number in range(tokenizer.vocab_size)) >= 3
    )


def _holds_space(token: str) -> bool:
    return token == "" or any(char.isspace() for char in token)


def export_arpa(run: AnyRun, output_dir: Path) -> list[str]:
    """Write an n-gram model as an ARPA file, compressed where the name ends in .gz; what there is to say about it."""
    if not isinstance(run.config.model, NgramConfig):
        what = f"a run of kind {run.config.arch!r}" if run.generates else f"a run of task {run.config.task!r}"
        raise UsageError("export", f"{run.directory.path} is {what}", "an ARPA file holds an n-gram model")
    if output_dir.is_dir():
        raise UsageError("export", f"{output_dir} is a folder", f"name a file, such as {output_dir / 'model.arpa'}")
    model, tokenizer = run.model, run.vocabulary
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    write_arpa(output_dir, model, tokenizer)
    notes = []
    if tokenizer.type != "whitespace":
        notes.append(
            f"its words are the tokens of a {tokenizer.type} tokenizer: split texts so, or import it with --tokenizer-from"
        )
    if any(_holds_space(tokenizer.id_to_token(number)) for number in range(tokenizer.vocab_size)):
        notes.append("tokens with white space are written as their code points, such as \\x{20}")
    return notes
