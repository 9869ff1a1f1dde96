"""Import ARPA files as runs and export runs as ARPA files. Models from lmplz or SRILM can then be evaluated, compared and
sampled from like any other language model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.data.bos import read_bos
from weft.errors import ModelError, UsageError
from weft.interop.arpa import read_arpa, write_arpa
from weft.interop.export_record import ExportOptions
from weft.interop.import_run import ImportedRun, ImportPlan, make_run
from weft.models.ngram import FROM_FILE, NgramConfig, NgramModel
from weft.runs.config import RunConfig
from weft.runs.run import AnyRun
from weft.runs.run_dir import open_run_dir
from weft.text.tokenizers import Tokenizer


def import_arpa(source: Path, output_dir: Path, *, tokenizer_from: Path | None = None) -> ImportedRun:
    """Import the model of an ARPA file as a run of task 'lm'. Its tokenizer splits at whitespace, unless `tokenizer_from`
    names a run with another one. A model with </s> reads lines, any other running text."""
    if source.is_dir():
        raise ModelError(source, "is a directory; an ARPA model is a file")
    run_tokenizer = None if tokenizer_from is None else _load_tokenizer(tokenizer_from)
    model, tokenizer = read_arpa(source, tokenizer=run_tokenizer)
    if tokenizer_from is None and any(map(_has_whitespace, _tokens(tokenizer))):
        raise ModelError(
            source,
            "its words contain whitespace, so that texts cannot be split into them at spaces",
            "set `tokenizer_from` to the run whose tokenizer made it",
        )
    has_eos = _occurs(model, tokenizer.eos_id)
    data = {"train": False, "read_as": "lines" if has_eos else "windows"}
    table = {"arch": "ngram", "order": model.order, "smoothing": FROM_FILE}
    notes = [] if has_eos else ["no n-gram ends in </s>, so the model reads running text, not lines"]
    if tokenizer_from is None and _looks_like_subwords(tokenizer):
        notes.append(
            "its words look like subwords: tokenize texts in the same way, or import it with "
            "the tokenizer of the run it is from"
        )
    bos_text = None if has_eos or tokenizer_from is None else _bos_text(tokenizer_from, tokenizer)
    plan = ImportPlan({"task": "lm", "data": data, "model": table}, lambda config: model.arrays(), notes, bos_text)
    return make_run(plan, tokenizer, output_dir, source=source)


def _occurs(model: NgramModel, token: int) -> bool:
    """Whether a token occurred in the training text; unigrams have a probability even if they did not."""
    if model.order == 1:
        return bool(np.isfinite(model.levels[0].log_prob[token]))
    return bool((model.levels[1].keys % model.vocab_size == token).any())


def _load_tokenizer(run: Path) -> Tokenizer:
    directory = open_run_dir(run)
    if not directory.tokenizer.is_file():
        raise UsageError("tokenizer_from", f"{run} has no tokenizer.json")
    return Tokenizer.load(directory.tokenizer)


def _bos_text(run: Path, tokenizer: Tokenizer) -> str | None:
    """The text that precedes starts a new text in a run; None: <s>."""
    tokens = read_bos(run, tokenizer)
    return None if tokens == [tokenizer.bos_id] else tokenizer.decode(tokens)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]


def _looks_like_subwords(tokenizer: Tokenizer) -> bool:
    """Whether at least three words start with a marker of GPT-2, SentencePiece or WordPiece tokens."""
    return sum(token.startswith(("\u0120", "\u2581", "##")) for token in _tokens(tokenizer)) >= 3


def _has_whitespace(token: str) -> bool:
    return token == "" or any(char.isspace() for char in token)


def problems(config: RunConfig) -> list[str]:
    """Why a model cannot be an ARPA file."""
    if isinstance(config.model, NgramConfig):
        return []
    return [f"arch {config.arch!r} of task {config.task!r} is not an n-gram model; train with arch = 'ngram' of task 'lm'"]


def export(run: AnyRun, path: Path, options: ExportOptions) -> list[str]:
    """Write an n-gram model as an ARPA file, compressed if the name ends in .gz. Returns notes for the user."""
    if path.is_dir():
        raise UsageError("export", f"{path} is a directory", f"name a file, such as {path / 'model.arpa'}")
    if path.exists():
        raise UsageError("export", f"{path} already exists", "choose another `output_dir`")
    model, tokenizer = run.model, run.vocabulary
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arpa(path, model, tokenizer)
    notes = []
    if tokenizer.type != "whitespace":
        notes.append(
            f"its words are tokens of a {tokenizer.type} tokenizer: tokenize texts in the same way, "
            "or import it with the tokenizer of this run"
        )
    if any(map(_has_whitespace, _tokens(tokenizer))):
        notes.append("whitespace in tokens is written as code points, such as \\x{20}")
    return notes
