"""Measure the gain of denoising pre-training for encoder-decoders that are trained on few pairs.

    multi30k    English to German with 1,000 pairs; unpaired text: all English and German training captions
    g2p         pronunciation in five languages (SIGMORPHON 2020) with 400 words each; unpaired text: all training spellings
                and, in another order, all training pronunciations

Each seed samples other pairs and pre-trains another model. Both arms, fine-tuned and from scratch, have the same model, the
same tokenizer, the same pairs and the same options of [train]; the best weights are those with the best validation score. The
gain is paired by seed and item, with a 95% confidence interval over both (docs/concepts/significance.md). Targets: BLEU +3 and
word error rate -3, both significant. --recommended also trains what weft recommends for these pairs alone, with its own
tokenizers: for words, an LSTM.

Results are those of the validation data; --test also evaluates on the test data.

    python benchmarks/denoising.py --jobs 18 --test
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import SHARED_DATA, require_data, train_subprocess, verdict

import weft
from weft.comparison.significance import BootstrapSamples, Estimate, bootstrap, estimate
from weft.metrics.items import Function, ItemStatistics, Sums
from weft.metrics.seq2seq import TRANSLATION
from weft.text.reading import read_lines

LANGUAGES = ("fre", "hun", "hin", "gre", "bul")
NUM_WORDS, NUM_SENTENCES = 400, 1000
SCRATCH, TUNED, RECOMMENDED = "from scratch", "fine-tuned", "recommended"
METRICS = {metric.name: metric.compute for metric in TRANSLATION}
MUON: dict[str, Any] = {"optimizer": "muon", "adam_beta2": 0.98, "lr_schedule": "cosine", "warmup_ratio": 0.05}


def word_error_rate(totals: Sums) -> np.ndarray:
    rate: np.ndarray = 100.0 - METRICS["exact_match"](totals)
    return rate


class Experiment(NamedTuple):
    """A task with few pairs."""

    units: tuple[str, ...]  # languages, or one pair of languages; the items of all are evaluated together
    metric: str
    compute: Function
    sign: int  # 1 if higher is better
    target: float  # of the gain
    tokenizer: dict[str, Any]
    model: dict[str, Any]
    dropout: float  # of training on pairs
    denoising: dict[str, Any]  # [data] and [train] of pre-training
    pretraining: dict[str, Any]
    training: dict[str, Any]  # [train] of both arms


TRANSFORMER: dict[str, Any] = {
    "arch": "transformer", "position_encoding": "rotary", "num_heads": 4, "share_embeddings": True, "tie_embeddings": True,
}  # fmt: skip
EXPERIMENTS = {
    "multi30k": Experiment(
        ("en-de",), "BLEU", METRICS["bleu"], 1, 3.0,
        {"type": "bpe", "vocab_size": 6000},
        {**TRANSFORMER, "hidden_size": 256, "num_layers": 4, "ffn_dim": 512},
        0.3,
        {"noise_density": 0.35, "mean_span_length": 3.0, "max_length": 128, "truncate": True},
        {"max_steps": 4000, "batch_tokens": 6144, "muon_lr": 0.01, "lr": 1e-3, "weight_decay": 0.1, "ema_decay": 0.998},
        {"max_steps": 1000, "batch_tokens": 4096, "muon_lr": 0.01, "lr": 1e-3, "weight_decay": 0.1, "label_smoothing": 0.1,
         "ema_decay": 0.99, "num_validations": 5, "monitor": "bleu"},
    ),
    "g2p": Experiment(
        LANGUAGES, "WER", word_error_rate, -1, 3.0,
        {"type": "whitespace"},
        {**TRANSFORMER, "hidden_size": 128, "num_layers": 3, "ffn_dim": 256},
        0.3,
        {"noise_density": 0.3, "mean_span_length": 2.0, "max_length": 64},
        {"max_steps": 1500, "batch_tokens": 2048, "muon_lr": 0.01, "lr": 1e-3, "weight_decay": 0.1, "ema_decay": 0.998},
        {"max_steps": 600, "batch_tokens": 1400, "muon_lr": 0.01, "lr": 1e-3, "weight_decay": 0.1, "label_smoothing": 0.1,
         "ema_decay": 0.99, "num_validations": 5, "monitor": "exact_match"},
    ),
}  # fmt: skip


# ---- data


def sampled(count: int, size: int, seed: int) -> np.ndarray:
    """The numbers of `size` of `count` examples."""
    return np.random.default_rng(seed).permutation(count)[:size]


def shuffled(texts: Sequence[str], seed: int) -> list[str]:
    return [texts[index] for index in np.random.default_rng(seed).permutation(len(texts))]


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    path.write_bytes(("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs)).encode())


def read_multi30k(data: Path, unit: str) -> dict[str, list[tuple[str, str]]]:
    stems = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    sides = unit.split("-")
    return {
        split: list(zip(*(read_lines(data / "multi30k" / f"{stem}.{side}.gz") for side in sides), strict=True))
        for split, stem in stems.items()
    }


def read_g2p(data: Path, unit: str) -> dict[str, list[tuple[str, str]]]:
    """Spellings, their letters separated by spaces, and pronunciations: one tokenizer reads both."""
    splits = {}
    for split, name in {"train": "train", "valid": "dev", "test": "test"}.items():
        rows = [line.split("\t") for line in read_lines(data / "g2p-sigmorphon2020" / f"{unit}_{name}.tsv")]
        splits[split] = [(" ".join(word), phones) for word, phones in rows]
    return splits


def write_data(experiment: str, unit: str, data: Path, directory: Path, seeds: int) -> None:
    """Write unpaired texts, the pairs of each seed, and validation and test data."""
    splits = (read_multi30k if experiment == "multi30k" else read_g2p)(data, unit)
    size = NUM_SENTENCES if experiment == "multi30k" else NUM_WORDS
    texts = [text for pair in splits["train"] for text in pair]
    (directory / f"{experiment}-{unit}-text.txt").write_bytes("".join(f"{text}\n" for text in shuffled(texts, 0)).encode())
    pairs = {split: splits[split] for split in ("valid", "test")}
    for seed in range(1, seeds + 1):
        pairs[f"train-{seed}"] = [splits["train"][index] for index in sampled(len(splits["train"]), size, seed)]
    for name, rows in pairs.items():
        write_pairs(directory / f"{experiment}-{unit}-{name}.tsv", rows)
        if experiment == "g2p":  # as dictionaries are, for recommended settings
            write_pairs(directory / f"{experiment}-{unit}-{name}-words.tsv", [(word.replace(" ", ""), ph) for word, ph in rows])


# ---- runs


class Plan(NamedTuple):
    """Names, run files and the order of the runs."""

    directory: Path
    arms: Sequence[str]
    scale: float  # of the numbers of steps
    overrides: Sequence[str]

    def name(self, experiment: str, unit: str, seed: int, arm: str = "") -> Path:
        return self.directory / "-".join([experiment, unit, arm.replace(" ", "-") or "denoising", str(seed)])

    def file(self, name: str) -> str:
        return str((self.directory / name).resolve())

    def steps(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "max_steps": max(10, round(values["max_steps"] * self.scale))}

    def denoising(self, experiment: str, unit: str, seed: int) -> dict[str, Any]:
        plan = EXPERIMENTS[experiment]
        return {
            "task": "denoising",
            "recommend": False,
            "seed": seed,
            "data": {"train": self.file(f"{experiment}-{unit}-text.txt"), "valid": 0.02, **plan.denoising},
            "tokenizer": plan.tokenizer,
            "model": {**plan.model, "dropout": 0.1},
            "train": {**MUON, **self.steps(plan.pretraining), "num_validations": 4},
        }

    def pair_file(self, experiment: str, unit: str, split: str, arm: str) -> str:
        suffix = "-words" if arm == RECOMMENDED and experiment == "g2p" else ""
        return self.file(f"{experiment}-{unit}-{split}{suffix}.tsv")

    def pairs(self, experiment: str, unit: str, seed: int, arm: str) -> dict[str, Any]:
        """The run file of an arm. Those of the same model have the tokenizer of pre-training."""
        plan, source = EXPERIMENTS[experiment], self.name(experiment, unit, seed).resolve()
        files = {"train": self.pair_file(experiment, unit, f"train-{seed}", arm)}
        files["valid"] = self.pair_file(experiment, unit, "valid", arm)
        if arm == RECOMMENDED:
            return {"task": "seq2seq", "seed": seed, "data": files}
        train = {**MUON, **self.steps(plan.training)}
        return {
            "task": "seq2seq",
            "recommend": False,
            "seed": seed,
            "data": {**files, "max_length": plan.denoising["max_length"], "truncate": True},
            "tokenizer": {"file": str(source / "tokenizer.json")},
            "model": {**plan.model, "dropout": plan.dropout},
            "train": {**train, "init_from": str(source)} if arm == TUNED else train,
        }

    def train(self, job: tuple[str, str, int]) -> None:
        """Pre-train a model, fine-tune it, and train the other arms."""
        experiment, unit, seed = job
        start = time.perf_counter()
        train_subprocess(self.denoising(experiment, unit, seed), self.name(experiment, unit, seed), threads=1)
        for arm in self.arms:
            run_dir = self.name(experiment, unit, seed, arm)
            train_subprocess(self.pairs(experiment, unit, seed, arm), run_dir, threads=1, overrides=self.overrides)
        print(f"{experiment} {unit}, seed {seed}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


# ---- results


def evaluate(job: tuple[Path, Path]) -> ItemStatistics:
    """The item statistics of a run on a file of pairs, beam size 5."""
    run_dir, file = job
    return weft.load(run_dir).evaluate(file, truncate=True).items


def joined(parts: Sequence[ItemStatistics]) -> ItemStatistics:
    """The items of several languages as one test set."""
    names = ("lines", "exact", "edits", "reference_tokens", "bleu")
    statistics = {name: np.concatenate([part.statistics[name] for part in parts]) for name in names}
    return ItemStatistics(np.arange(len(statistics["lines"])), statistics)


def estimate_gain(tuned: Sequence[BootstrapSamples], scratch: Sequence[BootstrapSamples], sign: int) -> Estimate:
    """The gain, paired by seed; both arms use the same resamples of items. A reduction is a gain if lower is better."""
    return estimate([
        BootstrapSamples(sign * (a.value - b.value), sign * (a.resamples - b.resamples), a.items)
        for a, b in zip(tuned, scratch, strict=True)
    ])  # fmt: skip


def report(name: str, split: str, items: Mapping[tuple[str, str, int], ItemStatistics], seeds: int) -> None:
    """Print the scores of both arms and the gain. `items` are by arm, unit and seed."""
    plan = EXPERIMENTS[name]
    arms = list(dict.fromkeys(arm for arm, _, _ in items))
    runs = [joined([items[arm, unit, seed] for unit in plan.units]) for arm in arms for seed in range(1, seeds + 1)]
    flat = [sample["score"] for sample in bootstrap(runs, {"score": plan.compute})]
    samples = {arm: flat[index * seeds : (index + 1) * seeds] for index, arm in enumerate(arms)}
    print(f"{name}, {split}: {plan.metric} of {flat[0].items:,} items, mean of {seeds} seeds")
    for arm in arms:
        by_seed = " ".join(f"{sample.value:.2f}" for sample in samples[arm])
        print(f"  {arm:<13} {estimate(samples[arm]).value:6.2f}   by seed {by_seed}")
    for unit in plan.units if len(plan.units) > 1 else ():
        means = [
            np.mean([plan.compute({key: value.sum(0, keepdims=True) for key, value in part.statistics.items()}).item()
                     for part in (items[arm, unit, seed] for seed in range(1, seeds + 1))])
            for arm in arms
        ]  # fmt: skip
        print(f"  {unit:<13} {'  '.join(f'{arm} {mean:.2f}' for arm, mean in zip(arms, means, strict=True))}")
    for other in (arm for arm in arms if arm != TUNED):
        gain = estimate_gain(samples[TUNED], samples[other], plan.sign)
        bounds = "" if gain.low is None else f" [{gain.low:.2f}, {gain.high:.2f}]"
        is_met = gain.value >= plan.target and gain.low is not None and gain.low > 0
        target = f", target {plan.target:g} and significant: {verdict(is_met)}" if other == SCRATCH else ""
        print(f"  gain over {other} {gain.value:.2f}{bounds}{target}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="directory of multi30k and g2p-sigmorphon2020")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/denoising"), help="finished runs are kept")
    parser.add_argument("--only", action="append", choices=list(EXPERIMENTS))
    parser.add_argument("--units", help="comma-separated languages of g2p")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of parallel processes")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the numbers of steps, for a quick try")
    parser.add_argument("--recommended", action="store_true", help="also train what weft recommends for the pairs alone")
    parser.add_argument("--test", action="store_true", help="evaluate on the test data as well; do not tune on it")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run on pairs")
    args = parser.parse_args()
    require_data(parser, args.data)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if args.units:
        EXPERIMENTS["g2p"] = EXPERIMENTS["g2p"]._replace(units=tuple(args.units.split(",")))
    names = args.only or list(EXPERIMENTS)
    arms = [SCRATCH, TUNED, *([RECOMMENDED] if args.recommended else [])]
    plan = Plan(args.output_dir, arms, args.scale, args.set)
    cells = [(name, unit) for name in names for unit in EXPERIMENTS[name].units]
    for name, unit in cells:
        write_data(name, unit, args.data, args.output_dir, args.seeds)
    seeds = range(1, args.seeds + 1)
    start = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:  # the longest ones first
        list(pool.map(plan.train, [(name, unit, seed) for name, unit in cells for seed in seeds]))
    print(f"trained in {time.perf_counter() - start:.0f} s, {args.jobs} in parallel", flush=True)
    for split in ("valid", "test") if args.test else ("valid",):
        keys = [(name, arm, unit, seed) for name, unit in cells for arm in arms for seed in seeds]
        jobs = [
            (plan.name(name, unit, seed, arm), Path(plan.pair_file(name, unit, split, arm))) for name, arm, unit, seed in keys
        ]
        with get_context("spawn").Pool(min(args.jobs, len(jobs))) as processes:
            items = dict(zip(keys, processes.map(evaluate, jobs, chunksize=1), strict=True))
        for name in names:
            report(name, split, {key[1:]: value for key, value in items.items() if key[0] == name}, args.seeds)


if __name__ == "__main__":
    main()
