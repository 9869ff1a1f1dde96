"""CTranslate2 as an engine of weft, on the test data of Multi30k (German to English, test_2016_flickr).

    python benchmarks/ctranslate2_engine.py --run runs/benchmarks/multi30k/transformer

RUN is a trained Transformer, such as those of multi30k.py and translation_models.py. All engines search with beam size 5,
length penalty 1 and patience 2 on one thread. The table has the number of outputs that equal weft's, BLEU, sentences per CPU
second in batches of 64 and one by one (medians), both also relative to weft and to weft without patience, and the size of the
weights. Rounds of all engines take turns, since the load of a shared machine changes. Targets: 99% equal outputs and a BLEU
within 0.1 in float32; a BLEU within 0.3 in int8.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _common import SHARED_DATA, require_data, verdict
from sacrebleu import corpus_bleu

import weft
from weft.cli.threads import set_threads
from weft.runs.run import AnyRun

TYPES = ("float32", "int16", "int8")


def read(data: Path, language: str) -> list[str]:
    with gzip.open(data / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        return file.read().removesuffix("\n").split("\n")


class Engine(NamedTuple):
    run: AnyRun
    quantization: str | None  # None: weft itself
    patience: float = 2.0

    def translate(self, sources: Sequence[str]) -> list[str]:
        return [prediction.text for prediction in self.run.predict(list(sources), beam_size=5, patience=self.patience)]

    def one_by_one(self, sources: Sequence[str]) -> None:
        for source in sources:
            self.translate([source])


def cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


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
    engines = {"weft": Engine(ours, None), "weft, no patience": Engine(ours, None, patience=0.0)}
    for name in TYPES:
        run = weft.load(args.run, device="cpu", engine="ctranslate2", quantization=name)
        engines[f"ctranslate2 {name}"] = Engine(run, name)
    outputs, batches, singles = dict[str, list[str]](), dict[str, list[float]](), dict[str, list[float]]()
    for _ in range(args.rounds):
        for name, engine in engines.items():
            seconds = cpu_seconds(lambda: outputs.update({name: engine.translate(sources)}))  # noqa: B023  # called at once
            batches.setdefault(name, []).append(len(sources) / seconds)
            singles.setdefault(name, []).append(args.single / cpu_seconds(partial(engine.one_by_one, sources[: args.single])))
    rates = {name: (statistics.median(batches[name]), statistics.median(singles[name])) for name in engines}
    bleus = {name: corpus_bleu(texts, [references]).score for name, texts in outputs.items()}
    print(f"{'engine':<20} {'equal':>6} {'BLEU':>6} {'batch/s':>9} {'single/s':>9} {'MB':>6}")
    for name, (run, quantization, _) in engines.items():
        num_equal = sum(map(str.__eq__, outputs[name], outputs["weft"]))
        factors = [[rate / base for rate, base in zip(rates[name], rates[old], strict=True)] for old in list(engines)[:2]]
        speedups = [f"{batch:.1f} and {single:.1f} times {old}" for old, (batch, single) in zip(engines, factors, strict=False)]
        limit = {None: 0.1, "float32": 0.1}.get(quantization, 0.3)
        is_quantized = quantization not in (None, "float32")
        passed = abs(bleus[name] - bleus["weft"]) <= limit and (is_quantized or num_equal >= 0.99 * len(sources))
        size = model_bytes(run, quantization) / 1e6
        numbers = f"{num_equal:>6} {bleus[name]:>6.2f} {rates[name][0]:>9.1f} {rates[name][1]:>9.1f} {size:>6.1f}"
        print(f"{name:<20} {numbers}  {verdict(passed)}  {'; '.join(speedups)}", flush=True)


if __name__ == "__main__":
    main()
