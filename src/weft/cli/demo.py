"""`weft demo`: an n-gram, an LSTM and a GPT on one text, side by side, in minutes and without a download."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from weft.cli.options import Shared
from weft.cli.output import columns, note, write, write_json

PROMPT = "The "
# running text, the last tenth held out; one tokenizer for all, so that their scores compare token by token too
COMMON: dict[str, Any] = {
    "task": "lm",
    "data": {"train": "text.txt", "valid": 0.1, "window": 128},
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


def text() -> str:
    """The topics of Python's own help, in the order of their names: about 460,000 characters of English and code."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def measure(name: str, path: Path) -> Row:
    """What a trained model's row of the table says."""
    from weft.cli.story import read_timing
    from weft.decode.options import GenerateOptions
    from weft.run import load, parameters

    run = load(path)
    scores = {score.name: score.value for score in run.evaluate()}
    seconds, speed = read_timing(path)
    options = GenerateOptions(length=90, temperature=0.8, top_p=0.9, seed=1)
    sample = PROMPT + run.generate(PROMPT, options)[0][0].text
    return Row(name, parameters(run.model), scores["bits_per_character"], speed, seconds, sample)


@dataclass(kw_only=True)
class Demo(Shared):
    """Train an n-gram, an LSTM and a GPT on the text of Python's help, and compare them. Takes about two minutes."""

    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the three runs go.")] = Path("runs/demo")

    def run(self) -> int:
        from weft import files
        from weft.cli.display import Display
        from weft.train.folder import make_folder

        make_folder(self.out)
        source = self.out / "text.txt"
        if not source.exists():
            files.write_text(source, text())
        rows = []
        with Display(quiet=self.quiet) as display:
            for name in MODELS:
                display.line(f"{name}: {self.out / name}")
                code = self._train(name, display)
                if code:
                    return code
                rows.append(measure(name, self.out / name))
        self._show(rows)
        return 0

    def _train(self, name: str, display: Any) -> int:
        from weft.cli.progress import TrainWatcher
        from weft.cli.signals import Stop
        from weft.cli.train import is_finished
        from weft.train.job import borrow_tokenizer, train
        from weft.train.loop import Stopped
        from weft.train.settings import resolve

        values, first = {**COMMON, **MODELS[name]}, next(iter(MODELS))
        if name != first:
            values = borrow_tokenizer(values, self.out / first)
        if is_finished(self.out / name, resolve(values, base=self.out)):
            display.line("  trained before; remove the folder to train it again")
            return 0
        with Stop() as stop:
            try:
                train(values, self.out / name, base=self.out, watcher=TrainWatcher(display, stop))
            except (Stopped, KeyboardInterrupt):
                display.clear()
                display.line("weft: stopped; the same command goes on")
                return stop.exit_code
        display.clear()
        return 0

    def _show(self, rows: list[Row]) -> None:
        if self.json:
            write_json({"models": [row._asdict() for row in rows], "text": str(self.out / "text.txt")})
            return
        head = ["model", "parameters", "bits/character", "tokens/s", "seconds"]
        table = [
            [
                row.model,
                f"{row.parameters:,}",
                f"{row.bits_per_character:.3f}",
                f"{row.tokens_per_second:,.0f}",
                f"{row.seconds:.1f}",
            ]
            for row in rows
        ]
        write("\n" + columns([head, *table]))
        for row in rows:
            write(f"\n--- {row.model}\n{row.sample}\n")
        best = shlex.quote(str(self.out / min(rows, key=lambda row: row.bits_per_character).model))
        note(
            f"\nfewer bits a character are better; parameters of an n-gram are its n-grams\n"
            f"next: weft generate {best} 'A class', weft evaluate {best}, or weft init lm > run.toml",
            quiet=self.quiet,
        )
