"""CTranslate2 as an engine of weft, on the test data of Multi30k (German to English, test_2016_flickr).

    python benchmarks/ctranslate2_engine.py --run runs/benchmarks/multi30k/transformer [--before SOURCE_DIR]

RUN is a trained Transformer, such as those of multi30k.py and translation_models.py. All engines search with beam size 5,
length penalty 1 and patience 2 on one thread. The table has the number of outputs that equal weft's, BLEU, sentences per CPU
second in batches of 64 and one by one (medians), and the size of the weights; below it, both speeds relative to weft, to weft
without patience, and to the weft in SOURCE_DIR: median of the rounds, with the smallest and the largest. Each engine is a
process of its own, and rounds take turns, since the load of a shared machine changes. Targets: 99% equal outputs and a BLEU
within 0.1 in float32; a BLEU within 0.3 in int8.

SOURCE_DIR is the directory `src` of an older weft, such as that of a `git worktree`. Both must load RUN: a newer weft reads
runs of an older one, but not always the other way round.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
from collections.abc import Sequence
from pathlib import Path

from _common import SHARED_DATA, require_data, verdict
from _translator import Translator
from sacrebleu import corpus_bleu

TYPES = ("float32", "int16", "int8")
NO_PATIENCE, BEFORE = "weft, no patience", "weft before"
BASES = ("weft", NO_PATIENCE, BEFORE)  # that others are compared with


def read(data: Path, language: str) -> list[str]:
    with gzip.open(data / f"test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        return file.read().removesuffix("\n").split("\n")


def start_engines(run: Path, before: Path | None) -> dict[str, Translator]:
    engines = {"weft": Translator(run, beam_size=5), NO_PATIENCE: Translator(run, beam_size=5, patience=0)}
    if before is not None:
        engines[BEFORE] = Translator(run, source_dir=before, beam_size=5)
    for name in TYPES:
        load = {"engine": "ctranslate2", "quantization": name}
        engines[f"ctranslate2 {name}"] = Translator(run, load=load, beam_size=5)
    return engines


def model_bytes(run: Path, engine: str) -> int:
    if engine in BASES:
        return (run / "model.safetensors").stat().st_size
    (path,) = run.glob(f"ctranslate2/{engine.split()[1]}-*/model.bin")
    return path.stat().st_size


def print_outputs(run: Path, outputs: dict[str, list[str]], references: Sequence[str], rates: dict[str, list[str]]) -> None:
    """One row per engine: equal outputs, BLEU, speed and size."""
    print(f"{'engine':<20} {'equal':>6} {'BLEU':>6} {'batch/s':>9} {'single/s':>9} {'MB':>6}")
    bleus = {name: corpus_bleu(texts, [references]).score for name, texts in outputs.items()}
    for name, texts in outputs.items():
        num_equal = sum(map(str.__eq__, texts, outputs["weft"]))
        is_exact = name in BASES or name.endswith("float32")
        passed = abs(bleus[name] - bleus["weft"]) <= (0.1 if is_exact else 0.3)
        passed &= not is_exact or num_equal >= 0.99 * len(texts)
        batch, single = rates[name]
        numbers = f"{num_equal:>6} {bleus[name]:>6.2f} {batch:>9} {single:>9} {model_bytes(run, name) / 1e6:>6.1f}"
        print(f"{name:<20} {numbers}  {verdict(passed)}", flush=True)


def print_ratios(seconds: dict[str, list[tuple[float, float]]]) -> None:
    """How many times as fast the engines are in batches and one by one: medians of the rounds, smallest and largest."""
    for base in BASES:
        for name in [name for name in seconds if base in seconds and name != base]:
            rounds = list(zip(seconds[name], seconds[base], strict=True))
            ratios = [[theirs[kind] / ours[kind] for ours, theirs in rounds] for kind in (0, 1)]
            text = " and ".join(f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]" for values in ratios)
            print(f"{name:<20} {text} times {base}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/benchmarks/multi30k/transformer"))
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    parser.add_argument("--before", type=Path, help="source directory of an older weft")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--single", type=int, default=100, help="sentences that are translated one by one")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    require_data(parser, args.run, "--run RUN")
    require_data(parser, args.data)
    sources, references = (read(args.data, language)[: args.sentences] for language in ("de", "en"))
    engines = start_engines(args.run, args.before)
    for engine in engines.values():
        engine.translate(sources[:64])  # loads the weights, and exports them for CTranslate2 the first time
    outputs, seconds = dict[str, list[str]](), dict[str, list[tuple[float, float]]]()
    for _ in range(args.rounds):
        for name, engine in engines.items():
            outputs[name], batches = engine.translate(sources)
            _, singles = engine.translate(sources[: args.single], one_by_one=True)
            seconds.setdefault(name, []).append((batches, singles))
    for engine in engines.values():
        engine.close()
    sizes = (len(sources), args.single)
    rates = {
        name: [f"{size / statistics.median(times):.1f}" for size, times in zip(sizes, zip(*rounds, strict=True), strict=True)]
        for name, rounds in seconds.items()
    }
    print_outputs(args.run, outputs, references, rates)
    print_ratios(seconds)


if __name__ == "__main__":
    main()
