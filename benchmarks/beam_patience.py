"""Beam search of an encoder-decoder with patience 2, the default, against the exact bound (`--patience 0`).

    python benchmarks/beam_patience.py RUN [--data DIR] [--rounds 3]

RUN translates Multi30k from German to English, for example `runs/benchmarks/multi30k/transformer` of multi30k.py. test_2016 is
translated with beam size 5 in batches of 64, on one thread, by both searches in turn: sentences per CPU second (per second on a
GPU), the number of equal outputs, and BLEU. Target: 99% equal outputs, BLEU within 0.1.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from pathlib import Path

import torch
from _common import SHARED_DATA, require_data, verdict
from sacrebleu import corpus_bleu

import weft
from weft.cli.threads import set_threads
from weft.runs.run import AnyRun

SEARCHES = {"exact bound": 0.0, "patience 1": 1.0, "patience 2": 2.0}


def read(data: Path, language: str) -> list[str]:
    with gzip.open(data / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        return file.read().removesuffix("\n").split("\n")


def translate(run: AnyRun, sources: list[str], patience: float) -> tuple[list[str], float]:
    """The translations, and the seconds of the search."""
    clock = time.process_time if run.device.type == "cpu" else time.perf_counter
    start = clock()
    outputs = [prediction.text for prediction in run.predict(sources, beam_size=5, patience=patience)]
    if run.device.type == "cuda":
        torch.cuda.synchronize()
    return outputs, clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args()
    require_data(parser, args.data)
    set_threads(1)
    run = weft.load(args.run, device=args.device)
    sources, references = (read(args.data, language)[: args.sentences] for language in ("de", "en"))
    translate(run, sources[:64], 2.0)  # warm up
    outputs, rates = dict[str, list[str]](), dict[str, list[float]]()
    for _ in range(args.rounds):
        for name, patience in SEARCHES.items():
            outputs[name], seconds = translate(run, sources, patience)
            rates.setdefault(name, []).append(len(sources) / seconds)
    exact, exact_rate = outputs["exact bound"], statistics.median(rates["exact bound"])
    exact_bleu = corpus_bleu(exact, [references]).score
    for name, texts in outputs.items():
        num_equal, bleu = sum(map(str.__eq__, texts, exact)), corpus_bleu(texts, [references]).score
        rate = statistics.median(rates[name])
        passed = num_equal >= 0.99 * len(sources) and abs(bleu - exact_bleu) <= 0.1
        print(
            f"{name:<12} {rate:7.1f} sentences/s ({rate / exact_rate:.2f} times)  {num_equal} of {len(sources)} equal  "
            f"BLEU {bleu:.2f}  {verdict(passed) if name == 'patience 2' else ''}"
        )


if __name__ == "__main__":
    main()
