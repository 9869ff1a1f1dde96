"""The demo of language models: an n-gram model, an LSTM and a GPT on the text of Python's help."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import format_count, format_duration, status, warn, write, write_json, write_styled
from weft.text.table_layout import align

if TYPE_CHECKING:
    from weft.comparison.results import RunResults

TITLE, METRIC = "Three language models of Python's help", "bits_per_char"
INTRO = "Learning to write like Python's help: an n-gram model, an LSTM and a GPT"
TEXT = "text.txt"
PROMPT = "The "
# running text, the last tenth for validation; one tokenizer for all, so that losses per token are comparable
COMMON: dict[str, Any] = {
    "recommend": False,  # the models are trained in a minute each
    "task": "lm",
    "data": {"train": TEXT, "valid": 0.1, "context_length": 128},
    "tokenizer": {"type": "bpe", "vocab_size": 1000},
}
MODELS: dict[str, dict[str, Any]] = {
    "ngram": {"model": {"arch": "ngram", "order": 5}},
    "lstm": {
        "model": {"arch": "lstm", "num_layers": 1, "hidden_size": 256, "dropout": 0.2},
        "train": {"max_steps": 300, "batch_tokens": 2048, "num_validations": 3},
    },
    "gpt": {
        "model": {"arch": "gpt", "num_layers": 3, "hidden_size": 160},
        "train": {"max_steps": 300, "batch_tokens": 2048, "num_validations": 3},
    },
}


class Row(NamedTuple):
    """One row of the table."""

    model: str
    num_parameters: int
    bits_per_char: float
    tokens_per_second: float
    seconds: float
    sample: str

    def cells(self, mark: str) -> list[str]:
        speed, seconds = format_count(self.tokens_per_second), format_duration(self.seconds)
        size = format_count(self.num_parameters)
        return [f" {mark:1} {self.model}", size, f"{self.bits_per_char:.3f}", speed, seconds]


HEAD = ["   model", "params", "bits per character", "train tok/s", "train time"]


def help_text() -> str:
    """The topics of Python's help, sorted by name: about 460,000 characters of English and code."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def write_data(output_dir: Path) -> None:
    """Write the text, unless it exists."""
    from weft import files
    from weft.runs.run_dir import make_directory

    make_directory(output_dir)
    if not (output_dir / TEXT).exists():
        files.write_text(output_dir / TEXT, help_text())


def run_files() -> dict[str, dict[str, Any]]:
    return {name: {**COMMON, **values} for name, values in MODELS.items()}


def compared() -> list[str]:
    return list(run_files())


def to_row(name: str, results: RunResults) -> Row:
    """The row of a trained model, with a sample."""
    from weft.decode.options import GenerationConfig
    from weft.runs.load import load
    from weft.runs.status import read_timing
    from weft.tasks.lm.task import LM

    scores = {score.name: score.value for score in results.scores}
    seconds, speed = read_timing(results.run)
    options = GenerationConfig(max_new_tokens=90, temperature=0.8, top_p=0.9, seed=1)
    sample = PROMPT + load(results.run, LM).generate(PROMPT, options).text
    return Row(name, results.cost.num_parameters, scores["bits_per_char"], speed, seconds, sample)


def show(output_dir: Path, results: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
    """Print a table of all models, and a sample of each."""
    from weft.comparison.table import insufficient_data
    from weft.comparison.table import rows as compared_rows
    from weft.comparison.table_text import BEST_OR_TIED, significance_mark

    rows, report = [to_row(name, run) for name, run in results.items()], output_dir / "report.html"
    if json:
        write_json({"models": [row._asdict() for row in rows], "text": str(output_dir / TEXT), "report": str(report)})
        return
    groups = {name: [run] for name, run in results.items()}
    ranked = compared_rows(groups, METRIC)
    marks = {row.name: significance_mark(row) for row in ranked}
    head, *lines = align([HEAD, *(row.cells(marks[row.model]) for row in rows)])
    write_styled([("", ""), (head, "bold"), *((line, "") for line in lines)])
    write(f"\n * {BEST_OR_TIED}. Bits per character: fewer are better.\n   Parameters of an n-gram model: its n-grams.\n")
    if note := insufficient_data(ranked, groups):
        warn(note, quiet=quiet)
    for row in rows:
        write(f"\n--- {row.model}\n{row.sample}\n")
    name = shlex.quote(str(output_dir / ranked[0].name))
    status(
        f"\nReport: {report}\nNext: weft generate {name} 'A class'\n      weft serve {name}\n      weft evaluate {name}\n"
        "      weft init lm > run.toml",
        quiet=quiet,
    )
