"""Measure the gain of pretraining. A masked language model is trained on the text of the training sets (TREC, SST, UD English
EWT; with --text all, also on the English of Tatoeba and Multi30k). Then the same network with the same tokenizer is trained on
a tenth of the labels of TREC (classification) and EWT (tagging), initialized from these weights and randomly.

Each seed samples another tenth for training and another tenth for validation, and trains another masked language model.
Recipe, dropout and, for tagging, the character encoder are tuned for each arm on the validation data of the first seed, over
the same grid; the other seeds use the best configuration. Test data (the test set of TREC, the development set of EWT) is used
once, at the end. The gain is paired by seed and item, with a 95% confidence interval over both
(docs/concepts/significance.md). The defaults of weft are included.

    python benchmarks/pretraining.py --device cuda --jobs 16 --steps 20000 --text all
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import SHARED_DATA, require_data, train_command

import weft
from weft.comparison.significance import BootstrapSamples, Estimate, bootstrap, estimate
from weft.metrics.classification import SINGLE_LABEL
from weft.metrics.items import Function, ItemStatistics
from weft.metrics.tagging import TAGS
from weft.runs.status import read_run_status
from weft.tasks.tagging.data import TaggedDataConfig
from weft.text.reading import read_lines

FRACTION = 0.1
DIVERGED = 6  # exit code
SCRATCH = "from scratch"


class Experiment(NamedTuple):
    """A task with few labels."""

    task: str
    metric: str
    compute: Function
    suffix: str
    baselines: Mapping[str, dict[str, Any]]  # [model] of baselines and of weft's defaults
    model_grid: Sequence[dict[str, Any]]  # options of [model] to tune


EXPERIMENTS = {
    "trec": Experiment(
        "classification", "accuracy", SINGLE_LABEL[0].compute, "txt",
        {"default lstm": {"arch": "lstm"}, "regression": {"arch": "logistic-regression", "C": 10.0}},
        ({"pooling": "mean"}, {"pooling": "max"}),
    ),
    "ewt": Experiment(
        "tagging", "token_accuracy", TAGS[0].compute, "conllu",
        {"default lstm": {"arch": "lstm", "head": "linear"}},
        ({"head": "linear", "char_encoder": False}, {"head": "linear", "char_encoder": {}}),
    ),
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "adamw 1e-4": {"lr": 1e-4},
    "adamw 3e-4": {"lr": 3e-4},
    "adamw 1e-3": {"lr": 1e-3},
    "adamw 3e-3": {"lr": 3e-3},
    "muon": {
        "optimizer": "muon",
        "lr": 4e-3,
        "adam_beta2": 0.95,
        "lr_schedule": "linear",
        "weight_decay": 0.1,
        "warmup_ratio": 0.0,
    },
}
# options of masked language models that differ from the defaults of classifiers and taggers
SHARED_OPTIONS: dict[str, dict[str, Any]] = {"transformer": {"norm": "rmsnorm", "qk_norm": True}, "lstm": {}}


class Candidate(NamedTuple):
    """A point of the grid."""

    recipe: str
    dropout: float
    model: dict[str, Any]

    def __str__(self) -> str:
        options = {name: "on" if value == {} else value for name, value in self.model.items() if name != "head"}
        return ", ".join([self.recipe, f"dropout {self.dropout:g}", *(f"{name} {value}" for name, value in options.items())])


# ---- data


def read_conllu(path: Path) -> list[str]:
    """The sentences of a CoNLL-U file, with all columns."""
    return [block for block in "\n".join(read_lines(path)).split("\n\n") if block.strip()]


def read_words(path: Path) -> Iterator[str]:
    """The space-separated words of each sentence, as a tagger reads them."""
    for sentence in TaggedDataConfig.model_validate({"train": str(path)}).sources(Path())["train"].records():
        yield " ".join(sentence.words)


def write_text(data: Path, path: Path, *, extended: bool) -> Path:
    """Write the distinct sentences of the training sets in random order, one per line; no test data."""
    lines = [line.split(" ", 1)[1] for line in read_lines(data / "trec" / "TREC.train.all", "latin-1")]
    lines += [line.split(" ", 1)[1] for line in read_lines(data / "sst" / "stsa.fine.train")]
    lines += read_words(data / "ud-english-ewt" / "en_ewt-ud-train.conllu.gz")
    if extended:
        lines += [line.split("\t", 1)[0] for line in read_lines(data / "tatoeba-eng-fra" / "fra.txt.gz")]
        lines += read_lines(data / "multi30k" / "train.en.gz")
    lines = [line for line in dict.fromkeys(lines) if line.strip()]
    order = np.random.default_rng(0).permutation(len(lines))
    path.write_bytes("".join(f"{lines[i]}\n" for i in order).encode())
    return path


def read_examples(data: Path) -> dict[str, dict[str, list[str]]]:
    """The labeled examples of each experiment: training and test data."""
    trec, sentences = data / "trec", data / "ud-english-ewt"
    return {
        "trec": {
            "train": list(read_lines(trec / "TREC.train.all", "latin-1")),
            "test": list(read_lines(trec / "TREC.test.all", "latin-1")),
        },
        "ewt": {
            "train": read_conllu(sentences / "en_ewt-ud-train.conllu.gz"),
            "test": read_conllu(sentences / "en_ewt-ud-dev.conllu.gz"),
        },
    }


def write_splits(examples: Mapping[str, Mapping[str, list[str]]], directory: Path, seeds: int) -> None:
    """Write the test data of each experiment and, for each seed, a tenth for training and another tenth for validation."""
    for name, splits in examples.items():
        suffix = EXPERIMENTS[name].suffix
        separator = "\n\n" if suffix == "conllu" else "\n"
        size = round(FRACTION * len(splits["train"]))
        (directory / f"{name}-test.{suffix}").write_bytes((separator.join(splits["test"]) + separator).encode())
        for seed in range(1, seeds + 1):
            order = np.random.default_rng(seed).permutation(len(splits["train"]))
            for split, start in (("train", 0), ("valid", size)):
                sample = [splits["train"][i] for i in order[start : start + size]]
                (directory / f"{name}-{split}-{seed}.{suffix}").write_bytes((separator.join(sample) + separator).encode())


# ---- runs


class Runner:
    """Trains run files in parallel processes. Finished runs are not trained again."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.output_dir, self.jobs, self.threads, self.device = args.output_dir, args.jobs, args.threads, args.device

    def path(self, name: str) -> Path:
        return Path(self.output_dir, name.replace(" ", "-"))

    def train(self, runs: Mapping[str, dict[str, Any]], phase: str) -> dict[str, float]:
        """The best validation score of each run, negated if lower is better; minus infinity if the run diverged."""
        start, scores = time.monotonic(), dict[str, float]()
        with ThreadPoolExecutor(self.jobs) as pool:
            for name, score in zip(runs, pool.map(self._train_run, runs, runs.values()), strict=True):
                scores[name] = score
                seconds = time.monotonic() - start
                remaining = seconds / len(scores) * (len(runs) - len(scores))
                progress = f"{len(scores)} of {len(runs)}, {seconds:.0f} s, about {remaining:.0f} s left"
                print(f"{phase}: {progress}", file=sys.stderr, flush=True)
        return scores

    def _train_run(self, name: str, values: dict[str, Any]) -> float:
        run_dir = self.path(name)
        if "train" in values:
            values = {**values, "train": {"device": self.device, "compile": False, **values["train"]}}
        command = train_command(values, run_dir, threads=self.threads)
        completed = subprocess.run(command, capture_output=True, text=True)
        if completed.returncode == DIVERGED:
            return -math.inf
        if completed.returncode:
            raise SystemExit(f"{name}: {completed.stderr.strip()}")
        best = read_run_status(run_dir).best
        if best is None:
            return math.nan
        metric, value = best
        return value if metric.higher_is_better else -value


def num_heads(args: argparse.Namespace) -> dict[str, int]:
    return {} if args.arch == "lstm" else {"num_heads": max(1, args.hidden_size // 64)}


def masked_lm_values(args: argparse.Namespace, text: Path, masking: str, seed: int) -> dict[str, Any]:
    """The run file of a masked language model."""
    size = {"num_layers": args.num_layers, "hidden_size": args.hidden_size, **num_heads(args)}
    return {
        "task": "masked-lm",
        "seed": seed,
        "data": {"train": str(text.resolve()), "valid": 0.02, "read_as": "lines", "context_length": 512},
        "tokenizer": {"type": "wordpiece", "vocab_size": 8000},
        "model": {"arch": args.arch, **size, "masking": masking},
        "train": {"max_steps": args.steps, "batch_tokens": args.batch_tokens},
    }


class Arm(NamedTuple):
    """An initialization to compare."""

    name: str
    masking: str | None  # of the masked language model; None: random initialization

    def source(self, seed: int) -> str:
        """The name of the masked language model."""
        return f"masked-{self.masking}-{seed}"


class Plan(NamedTuple):
    """Names and run files of the compared runs."""

    runner: Runner
    args: argparse.Namespace
    arms: Sequence[Arm]

    def data(self, experiment: str, seed: int) -> dict[str, Any]:
        suffix = EXPERIMENTS[experiment].suffix
        stems = {"train": f"{experiment}-train-{seed}", "valid": f"{experiment}-valid-{seed}", "test": f"{experiment}-test"}
        return {split: str((self.args.output_dir / f"{stem}.{suffix}").resolve()) for split, stem in stems.items()}

    def candidates(self, experiment: str, arm: Arm) -> list[Candidate]:
        models = EXPERIMENTS[experiment].model_grid
        if self.args.arch == "lstm" and arm.masking:  # the character encoder widens the first layer: weights would not fit
            models = [model for model in models if model.get("char_encoder") != {}]
        recipes, dropouts = self.args.recipes.split(","), [float(dropout) for dropout in self.args.dropouts.split(",")]
        return [Candidate(*point) for point in product(recipes, dropouts, models)]

    def name(self, experiment: str, arm: Arm, candidate: Candidate, seed: int) -> str:
        return f"{experiment}-{arm.masking or 'scratch'}-{candidate}-{seed}".replace(",", "")

    def values(self, experiment: str, arm: Arm, candidate: Candidate, seed: int) -> dict[str, Any]:
        args = self.args
        # the tokenizer is that of a masked language model for all arms
        source = self.runner.path((arm if arm.masking else self.arms[-1]).source(seed)).resolve()
        size = {"num_layers": args.num_layers, "hidden_size": args.hidden_size, **num_heads(args)}
        options = {**SHARED_OPTIONS[args.arch], "dropout": candidate.dropout, **candidate.model}
        train: dict[str, Any] = {"max_steps": args.tuning_steps, "num_validations": 20, **RECIPES[candidate.recipe]}
        if arm.masking:
            train["init_from"] = str(source)
        return {
            "task": EXPERIMENTS[experiment].task,
            "seed": seed,
            "data": self.data(experiment, seed),
            "tokenizer": {"file": str(source / "tokenizer.json")},
            "model": {"arch": args.arch, **size, **options},
            "train": train,
        }

    def baseline_values(self, experiment: str, name: str, seed: int) -> dict[str, Any]:
        model = EXPERIMENTS[experiment].baselines[name]
        values = {"task": EXPERIMENTS[experiment].task, "seed": seed, "data": self.data(experiment, seed), "model": model}
        return values if model["arch"] == "logistic-regression" else {**values, "train": {}}


# ---- results


def evaluate(runner: Runner, names: Sequence[str]) -> list[ItemStatistics]:
    """The item statistics of each run on its test data."""
    return [weft.load(runner.path(name), device=runner.device).evaluate().items for name in names]


def format_estimate(score: Estimate, sign: str = "") -> str:
    if score.low is None or score.high is None:
        return f"{score.value:{sign}.2f}"
    return f"{score.value:{sign}.2f} [{score.low:{sign}.2f}, {score.high:{sign}.2f}]"


def estimate_gain(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> Estimate:
    """The gain of a over b, paired by seed; both use the same resamples of items."""
    return estimate(
        [BootstrapSamples(x.value - y.value, x.resamples - y.resamples, x.items) for x, y in zip(a, b, strict=True)]
    )


def report(experiment: str, runner: Runner, runs: Mapping[str, Sequence[str]], notes: Mapping[str, str]) -> None:
    """Print the scores of each arm, whose runs are in `runs`, and its gain."""
    names = [name for arm_runs in runs.values() for name in arm_runs]
    metric, function = EXPERIMENTS[experiment].metric, EXPERIMENTS[experiment].compute
    samples = dict(zip(names, bootstrap(evaluate(runner, names), {metric: function}), strict=True))
    arms = {arm: [samples[name][metric] for name in arm_runs] for arm, arm_runs in runs.items()}
    print(f"\n{experiment}: {metric} on {arms[SCRATCH][0].items:,} test items, mean of {len(runs[SCRATCH])} seeds")
    print(f"{'':<18} {'score (95% CI)':<26} {'gain over scratch':<26} by seed; configuration")
    for arm, arm_samples in arms.items():
        gain = "" if arm == SCRATCH else format_estimate(estimate_gain(arm_samples, arms[SCRATCH]), "+")
        by_seed = " ".join(f"{sample.value:.2f}" for sample in arm_samples)
        print(f"{arm:<18} {format_estimate(estimate(arm_samples)):<26} {gain:<26} {by_seed}; {notes[arm]}")
    sys.stdout.flush()


def compare(experiment: str, plan: Plan) -> None:
    """Tune each arm on the first seed, train the other seeds, and evaluate all runs once."""
    runner, seeds = plan.runner, range(1, plan.args.seeds + 1)
    grid = {
        plan.name(experiment, arm, candidate, 1): (arm, candidate)
        for arm in plan.arms
        for candidate in plan.candidates(experiment, arm)
    }
    tuning = {name: plan.values(experiment, arm, candidate, 1) for name, (arm, candidate) in grid.items()}
    scores = runner.train(tuning, f"{experiment}, tuning")
    names, notes, values = dict[str, list[str]](), dict[str, str](), dict[str, dict[str, Any]]()
    for arm in plan.arms:
        of_arm = [name for name, (grid_arm, _) in grid.items() if grid_arm == arm]
        best = max(of_arm, key=lambda name: scores[name])
        candidate = grid[best][1]
        names[arm.name] = [plan.name(experiment, arm, candidate, seed) for seed in seeds]
        notes[arm.name] = f"{candidate} (valid {scores[best]:.2f}, best of {len(of_arm)})"
        for seed, name in zip(seeds, names[arm.name], strict=True):
            values[name] = plan.values(experiment, arm, candidate, seed)
    for baseline in () if plan.args.bare else EXPERIMENTS[experiment].baselines:
        names[baseline], notes[baseline] = [f"{experiment}-{baseline}-{seed}" for seed in seeds], "defaults, own tokenizer"
        for seed, name in zip(seeds, names[baseline], strict=True):
            values[name] = plan.baseline_values(experiment, baseline, seed)
    runner.train(values, f"{experiment}, all seeds")
    report(experiment, runner, names, notes)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/pretraining"), help="finished runs are kept")
    parser.add_argument("--only", action="append", choices=list(EXPERIMENTS))
    parser.add_argument("--arch", choices=list(SHARED_OPTIONS), default="transformer")
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--masking", default="token,span", help="comma-separated maskings of the masked language models")
    parser.add_argument(
        "--text", choices=("sets", "all"), default="sets", help="sets: the training sets; all: also Tatoeba and Multi30k"
    )
    parser.add_argument("--steps", type=int, default=4000, help="steps of pretraining")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="tokens per batch of pretraining")
    parser.add_argument("--tuning-steps", type=int, default=400, help="steps of fine-tuning and of training from scratch")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="comma-separated recipes to tune, the same for every arm")
    parser.add_argument("--dropouts", default="0.1,0.3", help="comma-separated dropouts to tune, the same for every arm")
    parser.add_argument("--bare", action="store_true", help="without weft's defaults and baselines")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    parser.add_argument("--threads", type=int, default=1, help="threads per run")
    args = parser.parse_args()
    require_data(parser, args.data)
    if unknown := set(args.recipes.split(",")) - set(RECIPES):
        parser.error(f"--recipes: unknown recipe {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    return args


def main() -> None:
    args = parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    text = write_text(args.data, args.output_dir / "text.txt", extended=args.text == "all")
    write_splits(read_examples(args.data), args.output_dir, args.seeds)
    runner, maskings = Runner(args), args.masking.split(",")
    arms = [Arm(SCRATCH, None), *(Arm(f"{masking} masking", masking) for masking in maskings)]
    runs = {
        arm.source(seed): masked_lm_values(args, text, arm.masking, seed)
        for arm in arms
        if arm.masking
        for seed in range(1, args.seeds + 1)
    }
    scores = runner.train(runs, "pretraining")
    num_words = sum(len(line.split()) for line in read_lines(text))
    print(f"text: {sum(1 for _ in read_lines(text)):,} lines, {num_words:,} words, --text {args.text}")
    size = f"{args.arch}, {args.num_layers} x {args.hidden_size}"
    print(f"pretraining: {size}, {args.steps:,} steps of {args.batch_tokens:,} tokens")
    for name, score in scores.items():
        print(f"  {name}: validation loss {-score:.4f} nats per masked token")
    for experiment in args.only or EXPERIMENTS:
        compare(experiment, Plan(runner, args, arms))


if __name__ == "__main__":
    main()
