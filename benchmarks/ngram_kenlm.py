"""Our n-gram models against KenLM's: the same text, every number of the ARPA files, perplexities, seconds.

    python benchmarks/ngram_kenlm.py --lmplz kenlm/build/bin/lmplz --text english.txt [--test other.txt]

lmplz comes from a build of github.com/kpu/kenlm (cmake, Boost); the `kenlm` package reads and scores. The text has a
sentence a line, words between blanks. Seconds are of the processor, user and system together, medians of `--repeat`
runs that take turns.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
import torch

from weft.interop.arpa import read_arpa, write_arpa
from weft.models.ngram import NgramConfig, NgramModel, fit

STARTED = time.process_time()  # what Python and the imports cost


class Words:
    def __init__(self, words: list[str]) -> None:
        self.words, self.size = words, len(words)

    def token(self, id: int) -> str:
        return self.words[id]


def read(path: Path, number: dict[bytes, int], *, grow: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ids and line starts of a text, words numbered as they come, or unknown ones 0."""
    words = path.read_bytes().replace(b"\n", b" </s> ").split()
    ids = [number.setdefault(w, len(number)) for w in words] if grow else [number.get(w, 0) for w in words]
    tokens = np.array(ids)
    return tokens, np.append(0, np.flatnonzero(tokens == 2) + 1)


def fresh() -> dict[bytes, int]:
    return {b"<unk>": 0, b"<s>": 1, b"</s>": 2}


def ours(text: Path, out: Path, table: NgramConfig) -> tuple[list[float], NgramModel, list[str]]:
    """Seconds from text to ids, to model, to file; the model and its words."""
    at, number = [time.process_time()], fresh()
    tokens, starts = read(text, number, grow=True)
    at.append(time.process_time())
    model = fit(tokens, starts, table, vocab_size=len(number), vocabulary="")
    at.append(time.process_time())
    words = [word.decode() for word in number]
    write_arpa(out, model, Words(words))
    at.append(time.process_time())
    return list(np.diff(at)), model, words


def theirs(lmplz: Path, text: Path, out: Path, arguments: list[str]) -> float:
    """Seconds that lmplz takes from text to file."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with out.open("wb") as file, text.open("rb") as source:
        subprocess.run([lmplz, *arguments], stdin=source, stdout=file, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def largest(one: np.ndarray, two: np.ndarray) -> float:
    """The largest difference in log10, equal infinities being equal."""
    differ = one != two
    return float(np.abs(one[differ] - two[differ]).max(initial=0.0)) / math.log(10)


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def perplexities(model: NgramModel, their_arpa: Path, text: Path, number: dict[bytes, int]) -> dict[str, Any]:
    """Perplexity of both and tokens per second, end tokens counted; the largest difference of a sentence."""
    tokens, starts = read(text, number, grow=False)
    model.score_corpus(tokens, starts)  # makes the hash tables
    began = time.process_time()
    found = model.score_corpus(tokens, starts)
    middle = time.process_time()
    sentences = np.add.reduceat(found.astype(float), starts[:-1]) / math.log(10)
    lines = text.read_text().split("\n")[:-1]
    language = kenlm.Model(str(their_arpa))
    loaded = time.process_time()
    scores = np.array([language.score(line) for line in lines])
    ended = time.process_time()
    return {
        "ours": 10 ** (-sentences.sum() / len(tokens)),
        "theirs": 10 ** (-scores.sum() / len(tokens)),
        "sentence": np.abs(sentences - scores).max(),
        "our speed": len(tokens) / (middle - began),
        "their speed": len(tokens) / (ended - loaded),
    }


def report(model: NgramModel, words: list[str], out: Path, arpa: Path, texts: list[Path]) -> None:
    """Every difference between our model and lmplz's file, and what each makes of the texts."""
    other = read_arpa(arpa)
    theirs = [other.vocabulary.id_to_token(number) for number in range(other.vocabulary.vocab_size)]
    if theirs != words or any(
        not np.array_equal(a.keys, b.keys) for a, b in zip(model.levels, other.model.levels, strict=True)
    ):
        raise SystemExit("the two files do not hold the same n-grams")
    pairs = list(zip(model.levels, other.model.levels, strict=True))
    print(f"n-grams: {model.counts}, the same in both; notes: {model.notes or 'none'}")
    print(
        f"largest difference in log10: probability {max(largest(a.log_prob, b.log_prob) for a, b in pairs):.1e},",
        end=" ",
    )
    print(f"back-off {max(largest(a.back_off, b.back_off) for a, b in pairs):.1e}")
    number = {word.encode(): i for i, word in enumerate(words)}
    for text in texts:
        for name, file in (("lmplz's file", arpa), ("our file", out)):
            got = perplexities(model, file, text, number)
            print(f"{text.name}: perplexity {got['ours']:.4f}, kenlm on {name} {got['theirs']:.4f}", end="; ")
            print(f"a sentence differs by at most {got['sentence']:.1e} in log10", end="; ")
            print(f"tokens/s ours {got['our speed']:.3g}, kenlm {got['their speed']:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lmplz", type=Path, help="KenLM's estimator")
    parser.add_argument("--text", type=Path, help="default: the English sentences of tatoeba-eng-fra")
    parser.add_argument("--test", type=Path, default=None)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--prune", type=int, nargs="*", default=[])
    parser.add_argument("--memory", default="1G", help="lmplz -S: its default, 80%% of all, costs it seconds of system time")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.lmplz is None:
        parser.exit(0, "skipped: give --lmplz PATH, KenLM's estimator\n")
    with tempfile.TemporaryDirectory() as place:
        options.text = options.text or english(Path(place))
        compare(options)


def english(directory: Path) -> Path:
    """The first column of the sentence pairs, as a file of its own."""
    pairs = Path(__file__).resolve().parents[2] / "shared" / "data" / "tatoeba-eng-fra" / "fra.txt.gz"
    if not pairs.exists():
        raise SystemExit(f"skipped: {pairs} is not there; give --text FILE")
    text = directory / "english.txt"
    with gzip.open(pairs, "rb") as lines:
        text.write_bytes(b"".join(line.split(b"\t")[0] + b"\n" for line in lines))
    return text


def compare(options: argparse.Namespace) -> None:
    if not options.text.read_bytes().endswith(b"\n"):
        raise SystemExit(f"{options.text}: must end with a line end; lmplz gives a last line without one no </s>")
    torch.set_num_threads(1)
    table = NgramConfig(order=options.order, prune=options.prune)
    prune = ["--prune", *map(str, options.prune)] if options.prune else []
    with tempfile.TemporaryDirectory() as directory:
        out, arpa = Path(directory, "ours.arpa"), Path(directory, "theirs.arpa")
        arguments = [
            "-o",
            str(options.order),
            "-S",
            options.memory,
            "-T",
            directory + os.sep,
            *prune,
            "--discount_fallback",
        ]
        parts, seconds = [], []
        for _ in range(options.repeat):
            seconds.append(theirs(options.lmplz, options.text, arpa, arguments))
            part, model, words = ours(options.text, out, table)
            parts.append(part)
        print(f"lmplz, text to ARPA: {spread(seconds)}")
        print(f"ours, text to model: {spread([sum(part[:2]) for part in parts])}")
        print(f"ours, text to ARPA:  {spread([sum(part) for part in parts])}", end="; ")
        print("ids {:.2f}, model {:.2f}, file {:.2f}".format(*map(statistics.median, zip(*parts, strict=True))))
        ratio = statistics.median(map(sum, parts)) / statistics.median(seconds)
        print(f"ratio {ratio:.2f}; Python and imports before that: {STARTED:.2f} s")
        print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB with Python and torch")
        report(model, words, out, arpa, [text for text in (options.text, options.test) if text])


if __name__ == "__main__":
    main()
