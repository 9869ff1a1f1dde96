"""CTranslate2 as an engine of weft, on the test data of Multi30k (German to English, test_2016_flickr).

    python benchmarks/ctranslate2_engine.py --run runs/benchmarks/multi30k/transformer

RUN is a trained Transformer, such as that of multi30k.py. All engines search with beam size 5, length penalty 1 and patience 2
on one thread. The table has the number of outputs that equal weft's, BLEU, sentences per CPU second in batches of 64 and one
by one, and the size of the weights. Targets: 99% equal outputs and a BLEU within 0.1 in float32; a BLEU within 0.3 in int8.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from _common import SHARED_DATA, require_data, verdict
from sacrebleu import corpus_bleu

import weft
from weft.cli.threads import set_threads
from weft.runs.run import AnyRun

TYPES = ("float32", "int16", "int8")


def read(data: Path, language: str) -> list[str]:
    with gzip.open(data / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        return file.read().removesuffix("\n").split("\n")


def translate(run: AnyRun, sources: Sequence[str]) -> list[str]:
    return [prediction.text for prediction in run.predict(list(sources), beam_size=5)]


def one_by_one(run: AnyRun, sources: Sequence[str]) -> None:
    for source in sources:
        translate(run, [source])


def cpu_seconds(function: Callable[[], object], rounds: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def model_bytes(run: AnyRun, quantization: str | None) -> int:
    if quantization is None:
        return run.directory.weights.stat().st_size
    (path,) = run.path.glob(f"ctranslate2/{quantization}-*/model.bin")
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/benchmarks/multi30k/transformer"))
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--single", type=int, default=100, help="sentences that are translated one by one")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    require_data(parser, args.run, "--run RUN")
    require_data(parser, args.data)
    set_threads(1)
    sources, references = (read(args.data, language)[: args.sentences] for language in ("de", "en"))
    ours = weft.load(args.run, device="cpu")
    runs = {"weft": (ours, None)} | {
        f"ctranslate2 {name}": (weft.load(args.run, device="cpu", engine="ctranslate2", quantization=name), name)
        for name in TYPES
    }
    expected, rates, bleus = translate(ours, sources), list[tuple[float, float]](), list[float]()
    print(f"{'engine':<20} {'equal':>6} {'BLEU':>6} {'batch/s':>9} {'single/s':>9} {'MB':>6}")
    for name, (run, quantization) in runs.items():
        outputs = translate(run, sources)
        batch = len(sources) / cpu_seconds(partial(translate, run, sources), args.rounds)
        single = args.single / cpu_seconds(partial(one_by_one, run, sources[: args.single]), args.rounds)
        rates.append((batch, single))
        bleus.append(corpus_bleu(outputs, [references]).score)
        num_equal = sum(map(str.__eq__, outputs, expected))
        speedups = f"{batch / rates[0][0]:.1f} and {single / rates[0][1]:.1f} times weft" if quantization else ""
        limit = {None: 0.0, "float32": 0.1}.get(quantization, 0.3)
        passed = abs(bleus[-1] - bleus[0]) <= limit and (quantization != "float32" or num_equal >= 0.99 * len(sources))
        size = model_bytes(run, quantization) / 1e6
        numbers = f"{num_equal:>6} {bleus[-1]:>6.2f} {batch:>9.1f} {single:>9.1f} {size:>6.1f}"
        print(f"{name:<20} {numbers}  {verdict(passed)}  {speedups}", flush=True)


if __name__ == "__main__":
    main()
