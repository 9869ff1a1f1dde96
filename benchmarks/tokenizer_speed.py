"""How fast text becomes a corpus on disk, and in how much memory, against `encode_batch` of Hugging Face `tokenizers`.

    python benchmarks/tokenizer_speed.py --text seed.txt --megabytes 1000 --arch bpe

The text is made from the words of the seed file, drawn at random, one in fifty of them made up, so that no cache holds
them all. Both sides read the same file with the same tokenizer; the peer only encodes, and keeps nothing.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers

from weft.data.corpus import write_corpus
from weft.data.source import Source
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

WORDS_A_LINE = 12
MADE_UP = 0.02
BLOCK = 1 << 18


def make_text(seed_file: Path, path: Path, size: int) -> None:
    """Write `size` bytes of lines like those of the seed file."""
    words = np.array(seed_file.read_text(encoding="utf-8").split(), dtype=object)
    random, written = np.random.default_rng(0), 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        while written < size:
            drawn = words[random.integers(len(words), size=BLOCK)]
            new = np.flatnonzero(random.random(BLOCK) < MADE_UP)
            endings = random.integers(1 << 32, size=len(new))
            drawn[new] = [f"{word}{ending:x}" for word, ending in zip(drawn[new], endings, strict=True)]
            lines = [" ".join(drawn[at : at + WORDS_A_LINE]) for at in range(0, BLOCK, WORDS_A_LINE)]
            text = "\n".join(lines) + "\n"
            file.write(text)
            written += len(text.encode())


def blocks(path: Path, most: int) -> Iterator[list[str]]:
    """Lines of the first `most` bytes, about a megabyte at a time."""
    read = 0
    with path.open(encoding="utf-8", newline="\n") as file:
        while read < most and (lines := file.readlines(1 << 20)):
            read += sum(map(len, lines))
            yield lines


def measure_peer(tokenizer: Tokenizer, path: Path, most: int) -> float:
    """Megabytes per second of the tokenizers library alone."""
    peer = tokenizers.Tokenizer.from_str(tokenizer.data.decode())
    seconds, size = 0.0, 0
    for lines in blocks(path, most):
        size += sum(len(line.encode()) for line in lines)
        start = time.perf_counter()
        peer.encode_batch(lines, add_special_tokens=False)
        seconds += time.perf_counter() - start
    return size / 1e6 / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "tinyshakespeare" / "input.txt"
    parser.add_argument("--text", type=Path, default=default, help="a file whose words are used")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--peer-megabytes", type=int, default=100, help="how much of it the peer encodes")
    parser.add_argument("--type", choices=TYPES, default="bpe")
    parser.add_argument("--size", type=int, default=8000)
    parser.add_argument("--lines", action="store_true", help="every line is a unit")
    args = parser.parse_args()
    if not args.text.exists():
        parser.exit(0, f"skipped: {args.text} is not there; give --text FILE\n")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "text.txt"
        make_text(args.text, path, args.megabytes * 1_000_000)
        tokenizer = train_tokenizer(
            TokenizerConfig(type=args.kind, vocab_size=args.size), ("".join(lines) for lines in blocks(path, 10_000_000))
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        corpus = write_corpus(Source((path,), lines=args.lines), tokenizer, Path(directory), "corpus")
        ours = path.stat().st_size / 1e6 / (time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"text      {path.stat().st_size / 1e6:.0f} MB, {len(corpus.tokens):,} tokens, kind {args.kind}")
        print(f"peak RSS  {peak / 1024:.0f} MiB ({before / 1024:.0f} before tokenizing)")
        peer = measure_peer(tokenizer, path, args.peer_megabytes * 1_000_000)
        print(f"weft      {ours:.2f} MB/s, text file to memory-mapped corpus")
        print(f"peer      {peer:.2f} MB/s, encode_batch of tokenizers {tokenizers.__version__}, lists in memory")
        print(f"ratio     {ours / peer:.2f}")


if __name__ == "__main__":
    main()
