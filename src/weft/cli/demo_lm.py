"""The demo of language models: an n-gram, an LSTM and a GPT on the text of Python's own help."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import note, write, write_json
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.comparison.results import RunResults

TITLE, SCORE = "Three language models of Python's help", "bits_per_char"
TEXT = "text.txt"
PROMPT = "The "
# running text, the last tenth held out; one tokenizer for all, so that their scores compare token by token too
COMMON: dict[str, Any] = {
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
    """One model of the table."""

    model: str
    num_parameters: int
    bits_per_char: float
    tokens_per_second: float
    seconds: float
    sample: str

    def cells(self) -> list[str]:
        speed, seconds = f"{self.tokens_per_second:,.0f}", f"{self.seconds:.1f}"
        return [self.model, f"{self.num_parameters:,}", f"{self.bits_per_char:.3f}", speed, seconds]


HEAD = ["model", "parameters", "bits/character", "tokens/s", "seconds"]


def text() -> str:
    """The topics of Python's own help, in the order of their names: about 460,000 characters of English and code."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def write_data(output_dir: Path) -> None:
    """The text, unless it is there."""
    from weft import files
    from weft.runs.run_dir import make_directory

    make_directory(output_dir)
    if not (output_dir / TEXT).exists():
        files.write_text(output_dir / TEXT, text())


def run_files() -> dict[str, dict[str, Any]]:
    return {name: {**COMMON, **values} for name, values in MODELS.items()}


def to_row(name: str, found: RunResults) -> Row:
    """What a trained model's row of the table says, and a sample."""
    from weft.decode.options import GenerationConfig
    from weft.runs.load import load
    from weft.runs.status import read_timing
    from weft.tasks.lm.task import LM

    scores = {score.name: score.value for score in found.scores}
    seconds, speed = read_timing(found.run)
    options = GenerationConfig(max_new_tokens=90, temperature=0.8, top_p=0.9, seed=1)
    sample = PROMPT + load(found.run, LM).generate(PROMPT, options).text
    return Row(name, found.cost.num_parameters, scores["bits_per_char"], speed, seconds, sample)


def show(output_dir: Path, found: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
    """Print one table of all models, and a sample of each."""
    rows, report = [to_row(name, results) for name, results in found.items()], output_dir / "report.html"
    if json:
        write_json({"models": [row._asdict() for row in rows], "text": str(output_dir / TEXT), "report": str(report)})
        return
    write("\n" + columns([HEAD, *(row.cells() for row in rows)]))
    for row in rows:
        write(f"\n--- {row.model}\n{row.sample}\n")
    best = shlex.quote(str(output_dir / min(rows, key=lambda row: row.bits_per_char).model))
    note(
        f"\nfewer bits a character are better; parameters of an n-gram are its n-grams\n"
        f"next: weft generate {best} 'A class', weft evaluate {best}, or weft init lm > run.toml\n"
        f"the report is in {report}: open it in a browser",
        quiet=quiet,
    )
