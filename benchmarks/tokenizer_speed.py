"""Speed and memory of tokenizing a text file to disk, compared with `encode_batch` of Hugging Face `tokenizers`.

    python benchmarks/tokenizer_speed.py --text seed.txt --megabytes 1000 --type bpe

The text consists of random words of the seed file. One word in fifty gets a random ending, so that no cache can hold all
words. Both use the same file and the same tokenizer; `tokenizers` only encodes and discards the result.
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
from _common import SHARED_DATA, require_data

from weft.data.corpus import write_corpus
from weft.data.source import Source
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

WORDS_PER_LINE = 12
NEW_WORD_RATIO = 0.02
BLOCK_WORDS = 1 << 18


def make_text(seed_file: Path, path: Path, size: int) -> None:
    """Write `size` bytes of lines like those of the seed file."""
    words = np.array(seed_file.read_text(encoding="utf-8").split(), dtype=object)
    rng, written = np.random.default_rng(0), 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        while written < size:
            block = words[rng.integers(len(words), size=BLOCK_WORDS)]
            new = np.flatnonzero(rng.random(BLOCK_WORDS) < NEW_WORD_RATIO)
            endings = rng.integers(1 << 32, size=len(new))
            block[new] = [f"{word}{ending:x}" for word, ending in zip(block[new], endings, strict=True)]
            lines = [" ".join(block[i : i + WORDS_PER_LINE]) for i in range(0, BLOCK_WORDS, WORDS_PER_LINE)]
            text = "\n".join(lines) + "\n"
            file.write(text)
            written += len(text.encode())


def read_blocks(path: Path, max_chars: int) -> Iterator[list[str]]:
    """Lists of lines of about a megabyte each, until `max_chars` characters are read."""
    num_chars = 0
    with path.open(encoding="utf-8", newline="\n") as file:
        while num_chars < max_chars and (lines := file.readlines(1 << 20)):
            num_chars += sum(map(len, lines))
            yield lines


def measure_tokenizers(tokenizer: Tokenizer, path: Path, max_chars: int) -> float:
    """Megabytes per second of the tokenizers library."""
    hf_tokenizer = tokenizers.Tokenizer.from_str(tokenizer.data.decode())
    seconds, size = 0.0, 0
    for lines in read_blocks(path, max_chars):
        size += sum(len(line.encode()) for line in lines)
        start = time.perf_counter()
        hf_tokenizer.encode_batch(lines, add_special_tokens=False)
        seconds += time.perf_counter() - start
    return size / 1e6 / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    seed_file = SHARED_DATA / "tinyshakespeare" / "input.txt"
    parser.add_argument("--text", type=Path, default=seed_file, help="file to take words from")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--peer-megabytes", type=int, default=100, help="amount of text that tokenizers encodes")
    parser.add_argument("--type", choices=TYPES, default="bpe")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--lines", action="store_true", help="tokenize every line on its own")
    args = parser.parse_args()
    require_data(parser, args.text, "--text FILE")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "text.txt"
        make_text(args.text, path, args.megabytes * 1_000_000)
        tokenizer = train_tokenizer(
            TokenizerConfig(type=args.type, vocab_size=args.vocab_size),
            ("".join(lines) for lines in read_blocks(path, 10_000_000)),
        )
        peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        corpus = write_corpus(Source((path,), lines=args.lines), tokenizer, Path(directory), "corpus")
        weft_speed = path.stat().st_size / 1e6 / (time.perf_counter() - start)
        peak_after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"text      {path.stat().st_size / 1e6:.0f} MB, {len(corpus.tokens):,} tokens, type {args.type}")
        print(f"peak RSS  {peak_after / 1024:.0f} MiB ({peak_before / 1024:.0f} before tokenizing)")
        hf_speed = measure_tokenizers(tokenizer, path, args.peer_megabytes * 1_000_000)
        print(f"weft      {weft_speed:.2f} MB/s, text file to memory-mapped token file")
        print(f"HF        {hf_speed:.2f} MB/s, encode_batch of tokenizers {tokenizers.__version__}, lists in memory")
        print(f"ratio     {weft_speed / hf_speed:.2f}")


if __name__ == "__main__":
    main()
