"""Word vectors of a part of Wikipedia: correlation with judgments of similarity, and speed, beside gensim.

    python benchmarks/word_vectors.py [--data DIR] [--gensim PYTHON] [--only ARCH] [--speed]

The data is enwiki-start.txt.xz and eval/ (3.58 million words; words are [a-z]+ in lowercase, min_count 5, 100 dimensions,
window 5). --gensim names a Python that has gensim: it trains skip-gram with its defaults and the epochs of weft, and its
vectors are scored by `weft evaluate` after `weft import`, on the same items. --speed trains both for two epochs by turns,
with the same subsampling and two threads (weft with one as well), and prints words per CPU second (user and system), medians of
three.
"""

from __future__ import annotations

import argparse
import lzma
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import tomli_w
from _common import SHARED_DATA, require_data

SUITES = ("EN-WS-353-ALL.txt", "EN-SIMLEX-999.txt", "EN-RG-65.txt")
ARCHS = ("skip-gram", "cbow", "fasttext", "ppmi", "glove")
EPOCHS = 15
GENSIM = """
import sys
from gensim.models import Word2Vec
text, epochs, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sentences = [line.split() for line in open(text)]
model = Word2Vec(vector_size=100, window=5, min_count=5, sg=1, workers=2, seed=1)
model.build_vocab(sentences)
import resource
def seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
start = seconds()
model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
print(seconds() - start, flush=True)
model.wv.save_word2vec_format(out, binary=True)
"""
WEFT = """
import resource, sys
from weft.cli.threads import set_threads
set_threads(int(sys.argv[3]))
from collections import Counter
import numpy as np
from weft.models.word2vec_model import Word2Vec
from weft.models.word_vectors_config import Word2VecConfig
from weft.models.word_windows import Position
def seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
lines = [line.split() for line in open(sys.argv[1])]
frequent = [(word, count) for word, count in Counter(word for line in lines for word in line).most_common() if count >= 5]
index, counts = {word: row for row, (word, _) in enumerate(frequent)}, np.array([count for _, count in frequent])
kept = [[index[word] for word in line if word in index] for line in lines]
words = np.array([row for line in kept for row in line], np.int32)
numbers = np.repeat(np.arange(len(kept), dtype=np.int32), [len(line) for line in kept])
config = Word2VecConfig.model_validate({"subsample": 1e-3}).with_defaults()
model = Word2Vec(config, counts, list(index), seed=1)
start = seconds()
for _ in model.train(words, numbers, num_epochs=int(sys.argv[2]), start=Position(0, 0, 0)):
    pass
print(seconds() - start, len(words))
"""


def prepare(data: Path, directory: Path) -> Path:
    """The text, one line per paragraph, words separated by spaces."""
    directory.mkdir(parents=True, exist_ok=True)
    text = directory / "enwiki.txt"
    if not text.exists():
        with lzma.open(data / "enwiki-start.txt.xz", "rt", encoding="utf-8") as file:
            lines = (" ".join(re.findall("[a-z]+", line.lower())) for line in file)
            text.write_text("".join(f"{line}\n" for line in lines if line))
    return text


def weft(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "weft", *words], check=True)


def run_file(arch: str, text: Path, data: Path, directory: Path) -> Path:
    model = {"arch": arch} | ({"num_epochs": EPOCHS} if arch in ("skip-gram", "cbow", "fasttext") else {})
    table = {"train": str(text.resolve()), "test": [str((data / "eval" / name).resolve()) for name in SUITES]}
    path = directory / f"{arch}.toml"
    path.write_text(tomli_w.dumps({"task": "word-vectors", "data": table, "tokenizer": {"type": "whitespace"}, "model": model}))
    return path


def speed(text: Path, gensim: str, directory: Path) -> None:
    """Words per CPU second of both, by turns."""
    epochs, rates = 2, dict[str, list[float]]()
    num_words = 0
    for _ in range(3):
        for threads in (2, 1):
            command = [sys.executable, "-c", WEFT, str(text), str(epochs), str(threads)]
            ours = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, num_words = float(ours.stdout.split()[0]), int(ours.stdout.split()[1])
            rates.setdefault(f"weft, {threads} threads", []).append(epochs * num_words / seconds)
        command = [gensim, "-c", GENSIM, str(text), str(epochs), str(directory / "speed.bin")]
        theirs = subprocess.run(command, check=True, capture_output=True, text=True)
        rates.setdefault("gensim", []).append(epochs * num_words / float(theirs.stdout))
        print({name: [round(rate) for rate in values] for name, values in rates.items()}, flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name:<16} {rate:>10,.0f} words per CPU second, {rate / medians['gensim']:.2f} times gensim")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "words-enwiki")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/word-vectors"))
    parser.add_argument("--gensim", help="Python with gensim")
    parser.add_argument("--only", action="append", choices=ARCHS)
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    require_data(parser, args.data)
    text = prepare(args.data, args.output_dir)
    if args.speed:
        if args.gensim is None:
            parser.error("--speed needs --gensim")
        speed(text, args.gensim, args.output_dir)
        return
    for arch in args.only or ARCHS:
        weft("train", str(run_file(arch, text, args.data, args.output_dir)), "-o", str(args.output_dir / arch), "-q")
        print(f"== {arch}", flush=True)
        weft("evaluate", str(args.output_dir / arch))
    if args.gensim is not None:
        vectors, run = args.output_dir / "gensim.bin", args.output_dir / "gensim"
        subprocess.run([args.gensim, "-c", GENSIM, str(text), str(EPOCHS), str(vectors)], check=True)
        weft("import", str(vectors), "--format", "vectors", "-o", str(run))
        print("== gensim", flush=True)
        files = [word for name in SUITES for word in ("--data", str(args.data / "eval" / name))]
        weft("evaluate", str(run), *files)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10} MB")


if __name__ == "__main__":
    main()
