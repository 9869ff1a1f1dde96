"""ARPA files as runs, and runs as ARPA files: what lmplz, SRILM or weft itself estimated is evaluated, compared and sampled
from like any other language model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.data.opening import read_opening
from weft.errors import ModelError, UsageError
from weft.interop.arpa import read_arpa, write_arpa
from weft.interop.imported import Imported, Plan, make_run
from weft.models.ngram import FROM_FILE, NgramModel, NgramTable
from weft.runs.folder import open_folder
from weft.runs.run import AnyRun
from weft.text.tokenizers import Tokenizer


def import_arpa(source: Path, out: Path, *, tokenizer_from: Path | None = None) -> Imported:
    """The model of an ARPA file as a run of task 'lm'. Its words stand between spaces, unless a run lends the tokenizer that
    made them. A model that has seen </s> reads lines, any other running text."""
    if source.is_dir():
        raise ModelError(f"{source}: is a folder; an ARPA model is a file")
    lent = None if tokenizer_from is None else _tokenizer(tokenizer_from)
    model, tokenizer = read_arpa(source, tokenizer=lent)
    if tokenizer_from is None and any(_holds_space(tokenizer.token(number)) for number in range(tokenizer.size)):
        raise ModelError(
            f"{source}: its words hold white space, so a text can't be split into them by spaces; "
            "give the run whose tokenizer made it with --tokenizer-from"
        )
    ends = _has_seen(model, tokenizer.end)
    data = {"train": False, "read": "lines" if ends else "windows"}
    table = {"kind": "ngram", "order": model.order, "smoothing": FROM_FILE}
    notes = [] if ends else ["no line ended where it was counted (no n-gram ends in </s>), so it reads running text"]
    if tokenizer_from is None and _looks_like_pieces(tokenizer):
        notes.append(
            "its words look like pieces of words: a text must be split into them already, or --tokenizer-from name the run"
        )
    opening = None if ends or tokenizer_from is None else _opening(tokenizer_from, tokenizer)
    plan = Plan({"task": "lm", "data": data, "model": table}, lambda settings: model.arrays(), notes, opening)
    return make_run(plan, tokenizer, out, where=source)


def _has_seen(model: NgramModel, token: int) -> bool:
    """Whether a token was counted; a single one has a probability even if it was not."""
    if model.order == 1:
        return bool(np.isfinite(model.grams[0].log_prob[token]))
    return bool((model.grams[1].keys % model.size == token).any())


def _tokenizer(run: Path) -> Tokenizer:
    folder = open_folder(run)
    if not folder.tokenizer.is_file():
        raise UsageError(f"--tokenizer-from: {run} has no tokenizer.json")
    return Tokenizer.load(folder.tokenizer)


def _opening(run: Path, tokenizer: Tokenizer) -> str | None:
    """What texts of the run that lends its tokenizer come after."""
    tokens = read_opening(run, tokenizer)
    return None if tokens == [tokenizer.begin] else tokenizer.decode(tokens)


def _looks_like_pieces(tokenizer: Tokenizer) -> bool:
    """Whether several words begin as the pieces of usual subword tokenizers do."""
    return sum(tokenizer.token(number).startswith(("\u0120", "\u2581", "##")) for number in range(tokenizer.size)) >= 3


def _holds_space(token: str) -> bool:
    return token == "" or any(char.isspace() for char in token)


def export_arpa(run: AnyRun, out: Path) -> list[str]:
    """Write an n-gram model as an ARPA file, compressed where the name ends in .gz; what there is to say about it."""
    if not isinstance(run.settings.model, NgramTable):
        what = f"a run of kind {run.settings.kind!r}" if run.generates else f"a run of task {run.settings.task!r}"
        raise UsageError(f"export: {run.folder.path} is {what}; an ARPA file holds an n-gram model")
    if out.is_dir():
        raise UsageError(f"export: {out} is a folder; name a file, such as {out / 'model.arpa'}")
    model, tokenizer = run.model, run.vocabulary
    out.parent.mkdir(parents=True, exist_ok=True)
    write_arpa(out, model, tokenizer)
    notes = []
    if tokenizer.kind != "space":
        notes.append(
            f"its words are the tokens of a {tokenizer.kind} tokenizer: split texts so, or import it with --tokenizer-from"
        )
    if any(_holds_space(tokenizer.token(number)) for number in range(tokenizer.size)):
        notes.append("tokens with white space are written as their code points, such as \\x{20}")
    return notes
