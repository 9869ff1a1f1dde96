"""n-gram models compared with KenLM on the same text: all values of the ARPA files, perplexities and CPU times.

    python benchmarks/ngram_kenlm.py --lmplz kenlm/build/bin/lmplz --text english.txt [--test other.txt]

lmplz is from a build of github.com/kpu/kenlm (cmake, Boost); the `kenlm` package reads its files. The text has one sentence per
line and spaces between words. Times are CPU seconds (user and system), medians of --repeat runs that take turns.
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
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import kenlm
import numpy as np
import torch
from _common import SHARED_DATA, require_data

from weft.interop.arpa import read_arpa, write_arpa
from weft.models.ngram import NgramConfig, NgramModel, fit

STARTUP_SECONDS = time.process_time()  # of Python and the imports
EOS_ID = 2


class WordList:
    """The words of a model by ID, as `write_arpa` needs them."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.vocab_size = words, len(words)

    def id_to_token(self, id: int, /) -> str:
        return self.words[id]


class Fit(NamedTuple):
    """A model with its words, and the CPU seconds of each phase: reading, fitting, writing."""

    seconds: list[float]
    model: NgramModel
    words: list[str]


def read_tokens(path: Path, word_ids: dict[bytes, int], *, grow: bool) -> tuple[np.ndarray, np.ndarray]:
    """Token IDs and line starts of a text. With `grow`, new words are added to `word_ids`; otherwise they are unknown (0)."""
    words = path.read_bytes().replace(b"\n", b" </s> ").split()
    known = defaultdict(int, word_ids)
    if grow:
        known.default_factory = known.__len__  # the next ID
    tokens = np.fromiter(map(known.__getitem__, words), np.int64, len(words))
    if grow:
        word_ids.update(known)
    return tokens, np.append(0, np.flatnonzero(tokens == EOS_ID) + 1)


def fit_weft(text: Path, arpa: Path, config: NgramConfig) -> Fit:
    """Fit a model to a text and write it to an ARPA file."""
    times, word_ids = [time.process_time()], {b"<unk>": 0, b"<s>": 1, b"</s>": EOS_ID}
    tokens, starts = read_tokens(text, word_ids, grow=True)
    times.append(time.process_time())
    model = fit(tokens, starts, config, vocab_size=len(word_ids), vocabulary="")
    times.append(time.process_time())
    words = [word.decode() for word in word_ids]
    write_arpa(arpa, model, WordList(words))
    times.append(time.process_time())
    return Fit(np.diff(times).tolist(), model, words)


def fit_kenlm(lmplz: Path, text: Path, arpa: Path, arguments: list[str]) -> float:
    """The CPU seconds of lmplz from text to ARPA file."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with arpa.open("wb") as file, text.open("rb") as source:
        subprocess.run([lmplz, *arguments], stdin=source, stdout=file, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest absolute difference in log10; equal infinities are equal."""
    differs = a != b
    return float(np.abs(a[differs] - b[differs]).max(initial=0.0)) / math.log(10)


def format_seconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def timed(work: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """The result and the CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def print_perplexities(fitted: Fit, arpa: Path, arpa_name: str, text: Path, repeat: int) -> None:
    """Print perplexity, including EOS tokens, the largest difference of a sentence, and tokens per second of both."""
    tokens, starts = read_tokens(text, {word.encode(): i for i, word in enumerate(fitted.words)}, grow=False)
    lines = text.read_text().split("\n")[:-1]
    model, kenlm_model = fitted.model, kenlm.Model(str(arpa))
    model.score_corpus(tokens, starts)  # builds the hash tables
    weft_speeds, kenlm_speeds = [], []
    for _ in range(repeat):
        log_probs, seconds = timed(lambda: model.score_corpus(tokens, starts))
        weft_speeds.append(len(tokens) / seconds)
        kenlm_scores, seconds = timed(lambda: np.array([kenlm_model.score(line) for line in lines]))
        kenlm_speeds.append(len(tokens) / seconds)
    weft_scores = np.add.reduceat(log_probs.astype(float), starts[:-1]) / math.log(10)
    weft_perplexity, kenlm_perplexity = (10 ** (-scores.sum() / len(tokens)) for scores in (weft_scores, kenlm_scores))
    print(f"{text.name}: perplexity {weft_perplexity:.4f}, kenlm with {arpa_name} {kenlm_perplexity:.4f}", end="; ")
    print(f"largest difference of a sentence {np.abs(weft_scores - kenlm_scores).max():.1e} in log10")
    ratios = [ours / theirs for ours, theirs in zip(weft_speeds, kenlm_speeds, strict=True)]
    print(f"  tokens/s: weft {statistics.median(weft_speeds):.3g}, kenlm {statistics.median(kenlm_speeds):.3g}", end="; ")
    print(f"ratio {statistics.median(ratios):.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f})")


def report(fitted: Fit, weft_arpa: Path, kenlm_arpa: Path, texts: list[Path], repeat: int) -> None:
    """Print the differences between the model and the file of lmplz, and the perplexities of the texts."""
    model, other = fitted.model, read_arpa(kenlm_arpa)
    levels = list(zip(model.levels, other.model.levels, strict=True))
    other_words = [other.tokenizer.id_to_token(i) for i in range(other.tokenizer.vocab_size)]
    if other_words != fitted.words or any(not np.array_equal(a.keys, b.keys) for a, b in levels):
        raise SystemExit("the two files have different n-grams")
    log_prob_difference = max(largest_difference(a.log_prob, b.log_prob) for a, b in levels)
    back_off_difference = max(largest_difference(a.back_off, b.back_off) for a, b in levels)
    print(f"n-grams: {model.counts} in both; notes: {model.notes or 'none'}")
    print(f"largest difference in log10: probability {log_prob_difference:.1e}, back-off {back_off_difference:.1e}")
    for text in texts:
        for name, arpa in (("lmplz's file", kenlm_arpa), ("weft's file", weft_arpa)):
            print_perplexities(fitted, arpa, name, text, repeat)


def write_english(pairs: Path, path: Path) -> None:
    """Write the first column of the sentence pairs."""
    with gzip.open(pairs, "rb") as lines:
        path.write_bytes(b"".join(line.split(b"\t")[0] + b"\n" for line in lines))


def compare(args: argparse.Namespace, text: Path, directory: Path) -> None:
    if not text.read_bytes().endswith(b"\n"):
        raise SystemExit(f"{text}: the last line has no line feed; lmplz would not add </s> to it")
    torch.set_num_threads(1)
    config = NgramConfig(order=args.order, delta=None, prune=args.prune)
    weft_arpa, kenlm_arpa = directory / "weft.arpa", directory / "kenlm.arpa"
    arguments = ["-o", str(args.order), "-S", args.memory, "-T", f"{directory}{os.sep}", "--discount_fallback"]
    if args.prune:
        arguments += ["--prune", *map(str, args.prune)]
    fits, kenlm_seconds = [], []
    for _ in range(args.repeat):
        kenlm_seconds.append(fit_kenlm(args.lmplz, text, kenlm_arpa, arguments))
        fits.append(fit_weft(text, weft_arpa, config))
    phases = [fitted.seconds for fitted in fits]
    reading, fitting, writing = (statistics.median(seconds) for seconds in zip(*phases, strict=True))
    print(f"lmplz, text to ARPA: {format_seconds(kenlm_seconds)}")
    print(f"weft, text to model: {format_seconds([sum(seconds[:2]) for seconds in phases])}")
    print(f"weft, text to ARPA:  {format_seconds([sum(seconds) for seconds in phases])}", end="; ")
    print(f"reading {reading:.2f}, fitting {fitting:.2f}, writing {writing:.2f}")
    ratios = [sum(seconds) / theirs for seconds, theirs in zip(phases, kenlm_seconds, strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f})", end=", ")
    print(f"without {STARTUP_SECONDS:.2f} s for Python and imports")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB, including Python and torch")
    report(fits[-1], weft_arpa, kenlm_arpa, [text, args.test] if args.test else [text], args.repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lmplz", type=Path, help="path of KenLM's estimator")
    parser.add_argument("--text", type=Path, help="training text (default: the English sentences of tatoeba-eng-fra)")
    parser.add_argument("--test", type=Path, default=None, help="text to score in addition to the training text")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--prune", type=int, nargs="*", default=[])
    parser.add_argument("--memory", default="1G", help="-S of lmplz; its default, 80%% of the memory, costs system time")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    if args.lmplz is None:
        parser.exit(0, "skipped: pass --lmplz PATH, KenLM's estimator\n")
    pairs = SHARED_DATA / "tatoeba-eng-fra" / "fra.txt.gz"
    require_data(parser, args.text or pairs, "--text FILE")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if args.text is None:
            write_english(pairs, directory / "english.txt")
        compare(args, args.text or directory / "english.txt", directory)


if __name__ == "__main__":
    main()
