"""The demo of language models: an n-gram, an LSTM and a GPT on the text of Python's own help."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import note, write, write_json
from weft.text.columns import columns

if TYPE_CHECKING:
    from weft.compare.evidence import Evidence

TITLE, SCORE = "Three language models of Python's help", "bits_per_character"
TEXT = "text.txt"
PROMPT = "The "
# running text, the last tenth held out; one tokenizer for all, so that their scores compare token by token too
COMMON: dict[str, Any] = {
    "task": "lm",
    "data": {"train": TEXT, "valid": 0.1, "window": 128},
    "tokenizer": {"kind": "bpe", "size": 1000},
}
MODELS: dict[str, dict[str, Any]] = {
    "ngram": {"model": {"kind": "ngram", "order": 5}},
    "lstm": {
        "model": {"kind": "lstm", "layers": 1, "width": 256, "dropout": 0.2},
        "train": {"steps": 300, "batch_tokens": 2048, "validations": 3},
    },
    "gpt": {
        "model": {"kind": "gpt", "layers": 3, "width": 160},
        "train": {"steps": 300, "batch_tokens": 2048, "validations": 3},
    },
}


class Row(NamedTuple):
    """One model of the table."""

    model: str
    parameters: int
    bits_per_character: float
    tokens_per_second: float
    seconds: float
    sample: str

    def cells(self) -> list[str]:
        speed, seconds = f"{self.tokens_per_second:,.0f}", f"{self.seconds:.1f}"
        return [self.model, f"{self.parameters:,}", f"{self.bits_per_character:.3f}", speed, seconds]


HEAD = ["model", "parameters", "bits/character", "tokens/s", "seconds"]


def text() -> str:
    """The topics of Python's own help, in the order of their names: about 460,000 characters of English and code."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def write_data(out: Path) -> None:
    """The text, unless it is there."""
    from weft import files
    from weft.runs.folder import make_folder

    make_folder(out)
    if not (out / TEXT).exists():
        files.write_text(out / TEXT, text())


def run_files() -> dict[str, dict[str, Any]]:
    return {name: {**COMMON, **values} for name, values in MODELS.items()}


def told(name: str, found: Evidence) -> Row:
    """What a trained model's row of the table says, and a sample."""
    from weft.decode.options import GenerateOptions
    from weft.runs.load import load
    from weft.runs.story import read_timing
    from weft.tasks.lm.task import LM

    scores = {score.name: score.value for score in found.scores}
    seconds, speed = read_timing(found.run)
    options = GenerateOptions(length=90, temperature=0.8, top_p=0.9, seed=1)
    sample = PROMPT + load(found.run, LM).generate(PROMPT, options).text
    return Row(name, found.cost.parameters, scores["bits_per_character"], speed, seconds, sample)


def show(out: Path, found: Mapping[str, Evidence], *, json: bool, quiet: bool) -> None:
    """Print one table of all models, and a sample of each."""
    rows, report = [told(name, evidence) for name, evidence in found.items()], out / "report.html"
    if json:
        write_json({"models": [row._asdict() for row in rows], "text": str(out / TEXT), "report": str(report)})
        return
    write("\n" + columns([HEAD, *(row.cells() for row in rows)]))
    for row in rows:
        write(f"\n--- {row.model}\n{row.sample}\n")
    best = shlex.quote(str(out / min(rows, key=lambda row: row.bits_per_character).model))
    note(
        f"\nfewer bits a character are better; parameters of an n-gram are its n-grams\n"
        f"next: weft generate {best} 'A class', weft evaluate {best}, or weft init lm > run.toml\n"
        f"the report is in {report}: open it in a browser",
        quiet=quiet,
    )
