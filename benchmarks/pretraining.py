"""Measures the gain of pre-training. A masked language model is trained on the text of the training sets (TREC, SST, UD
English EWT; with --text all also the English of Tatoeba and Multi30k). Then the same network with the same tokens is trained
on a tenth of TREC's labels (classification) and of EWT's (tagging), from its weights and from random initialization.

Each seed samples another tenth to train on, another to select by, and trains another masked language model. Recipe, dropout
and, for tagging, the character encoder are chosen for each arm on the validation data of the first seed, from the same list;
the other seeds use that choice. Test data (TREC's test set; the development set of EWT) is read once, at the end. The gain is
paired by seed and item, with a 95% interval over both (docs/concepts/significance.md). The defaults of weft are included.

    python benchmarks/pretraining.py --device cuda --jobs 16 --steps 20000 --text all
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

import weft
from weft.comparison.significance import BootstrapSamples, Estimate, bootstrap, estimate
from weft.metrics.classification import SINGLE_LABEL
from weft.metrics.items import Function, ItemStatistics
from weft.metrics.tagging import TAGS
from weft.runs.status import read_run_status
from weft.tasks.tagging.data import TaggedDataConfig
from weft.text.reading import read_lines

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
FRACTION = 0.1
DIVERGED = 6  # weft's exit code of a diverged loss
SCRATCH = "from scratch"


class Work(NamedTuple):
    """A task that there are few labels for."""

    task: str
    score: str
    function: Function
    ending: str
    defaults: Mapping[str, dict[str, Any]]  # the defaults of weft, and baselines
    setups: Sequence[dict[str, Any]] = ({},)  # more of [model] to choose from


WORK = {
    "trec": Work(
        "classification", "accuracy", SINGLE_LABEL[0].compute, "txt",
        {"lstm by default": {"arch": "lstm"}, "regression": {"arch": "logistic-regression", "C": 10.0}},
        ({"pooling": "mean"}, {"pooling": "max"}),
    ),
    "ewt": Work(
        "tagging", "token_accuracy", TAGS[0].compute, "conllu",
        {"lstm by default": {"arch": "lstm", "head": "linear"}},
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
# what a masked language model of a kind is, and a classifier or tagger that is to start from it must be told to be
SHARED_OPTIONS: dict[str, dict[str, Any]] = {"transformer": {"norm": "rmsnorm", "qk_norm": True}, "lstm": {}}


class Choice(NamedTuple):
    """What an arm may choose."""

    recipe: str
    dropout: float
    setup: dict[str, Any]

    def __str__(self) -> str:
        inner = {name: value for name, value in self.setup.items() if name != "head"}
        return ", ".join(
            [self.recipe, f"dropout {self.dropout:g}", *(f"{name} {value or 'by letters'}" for name, value in inner.items())]
        )


# ---- data


def ewt(path: Path) -> list[str]:
    """The sentences of a CoNLL-U file, verbatim."""
    return [block for block in "\n".join(read_lines(path)).split("\n\n") if block.strip()]


def spoken(path: Path) -> Iterator[str]:
    """The words of each sentence with blanks between, as a tagger reads them."""
    for sentence in TaggedDataConfig.model_validate({"train": str(path)}).sources(Path())["train"].records():
        yield " ".join(sentence.words)


def write_text(data: Path, place: Path, *, more: bool) -> Path:
    """The text of the training sets, a sentence a line, in random order; no line twice, and none of any test data."""
    lines = [line.split(" ", 1)[1] for line in read_lines(data / "trec" / "TREC.train.all", "latin-1")]
    lines += [line.split(" ", 1)[1] for line in read_lines(data / "sst" / "stsa.fine.train")]
    lines += spoken(data / "ud-english-ewt" / "en_ewt-ud-train.conllu.gz")
    if more:
        lines += [line.split("\t", 1)[0] for line in read_lines(data / "tatoeba-eng-fra" / "fra.txt.gz")]
        lines += read_lines(data / "multi30k" / "train.en.gz")
    lines = [line for line in dict.fromkeys(lines) if line.strip()]
    order = np.random.default_rng(0).permutation(len(lines))
    place.write_bytes("".join(f"{lines[at]}\n" for at in order).encode())
    return place


def examples(data: Path) -> dict[str, dict[str, list[str]]]:
    """What has labels, of each task to train and to test."""
    trec, sentences = data / "trec", data / "ud-english-ewt"
    return {
        "trec": {
            "train": list(read_lines(trec / "TREC.train.all", "latin-1")),
            "test": list(read_lines(trec / "TREC.test.all", "latin-1")),
        },
        "ewt": {
            "train": ewt(sentences / "en_ewt-ud-train.conllu.gz"),
            "test": ewt(sentences / "en_ewt-ud-dev.conllu.gz"),
        },
    }


def write_tenths(found: Mapping[str, Mapping[str, list[str]]], place: Path, seeds: int) -> None:
    """Of each task and seed a tenth to train with and another to choose with; and what is tested with."""
    for name, parts in found.items():
        between = "\n\n" if WORK[name].ending == "conllu" else "\n"
        ending, size = WORK[name].ending, round(FRACTION * len(parts["train"]))
        (place / f"{name}-test.{ending}").write_bytes((between.join(parts["test"]) + between).encode())
        for seed in range(1, seeds + 1):
            order = np.random.default_rng(seed).permutation(len(parts["train"]))
            for split, low in (("train", 0), ("valid", size)):
                some = [parts["train"][at] for at in order[low : low + size]]
                (place / f"{name}-{split}-{seed}.{ending}").write_bytes((between.join(some) + between).encode())


# ---- runs


class Runner:
    """Trains run files, several side by side, each in a process of its own; what is finished is not trained again."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.out, self.jobs, self.threads, self.device = chosen.output_dir, chosen.jobs, chosen.threads, chosen.device

    def path(self, name: str) -> Path:
        return Path(self.out, name.replace(" ", "-"))

    def train(self, runs: Mapping[str, dict[str, Any]], what: str) -> dict[str, float]:
        """The best validation score of each; of one that diverged, minus infinity."""
        began, found = time.monotonic(), dict[str, float]()
        with ThreadPoolExecutor(self.jobs) as pool:
            for name, score in zip(runs, pool.map(self._one, runs, runs.values()), strict=True):
                found[name] = score
                spent = time.monotonic() - began
                left = spent / len(found) * (len(runs) - len(found))
                print(
                    f"{what}: {len(found)} of {len(runs)}, {spent:.0f} s, about {left:.0f} s left", file=sys.stderr, flush=True
                )
        return found

    def _one(self, name: str, values: dict[str, Any]) -> float:
        place = self.path(name)
        file = place.with_name(f"{place.name}.toml")
        if "train" in values:
            values = {**values, "train": {"device": self.device, "compile": False, **values["train"]}}
        file.write_text(tomli_w.dumps(values))
        command = [sys.executable, "-P", "-m", "weft", "train", str(file), "--output-dir", str(place), "--quiet"]
        done = subprocess.run([*command, "--threads", str(self.threads)], capture_output=True, text=True)
        if done.returncode == DIVERGED:
            return -math.inf
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr.strip()}")
        best = read_run_status(place).best
        if best is None:
            return math.nan
        metric, value = best
        return value if metric.upwards else -value


def pretraining(chosen: argparse.Namespace, text: Path, masking: str, seed: int) -> dict[str, Any]:
    """The run file of a masked language model."""
    heads = {} if chosen.arch == "lstm" else {"num_heads": max(1, chosen.hidden_size // 64)}
    return {
        "task": "masked-lm",
        "seed": seed,
        "data": {"train": str(text.resolve()), "valid": 0.02, "read_as": "lines", "context_length": 512},
        "tokenizer": {"type": "wordpiece", "vocab_size": 8000},
        "model": {
            "arch": chosen.arch,
            "num_layers": chosen.num_layers,
            "hidden_size": chosen.hidden_size,
            "masking": masking,
            **heads,
        },
        "train": {"max_steps": chosen.steps, "batch_tokens": chosen.batch_tokens},
    }


class Arm(NamedTuple):
    """Where a network starts from."""

    name: str
    masking: str | None  # of the masked language model; None: from random initialization

    def source(self, seed: int) -> str:
        return f"masked-{self.masking}-{seed}"


class Plan(NamedTuple):
    """The run files of what is compared."""

    runner: Runner
    chosen: argparse.Namespace
    arms: Sequence[Arm]

    def data(self, work: str, seed: int) -> dict[str, Any]:
        ending = WORK[work].ending
        names = {"train": f"{work}-train-{seed}", "valid": f"{work}-valid-{seed}", "test": f"{work}-test"}
        return {split: str((self.chosen.output_dir / f"{name}.{ending}").resolve()) for split, name in names.items()}

    def choices(self, work: str, arm: Arm) -> list[Choice]:
        setups = WORK[work].setups
        if self.chosen.arch == "lstm" and arm.masking:  # with letters beside words its first layer is wider
            setups = [setup for setup in setups if setup.get("char_encoder") != {}]
        recipes, dropouts = self.chosen.recipes.split(","), map(float, self.chosen.dropouts.split(","))
        return [Choice(*each) for each in product(recipes, list(dropouts), setups)]

    def name(self, work: str, arm: Arm, choice: Choice, seed: int) -> str:
        return f"{work}-{arm.masking or 'scratch'}-{choice}-{seed}".replace(",", "")

    def values(self, work: str, arm: Arm, choice: Choice, seed: int) -> dict[str, Any]:
        chosen = self.chosen
        # the tokens are those of the masked language model, whether or not its weights are used
        source = self.runner.path((arm if arm.masking else self.arms[-1]).source(seed)).resolve()
        size = {"num_layers": chosen.num_layers, "hidden_size": chosen.hidden_size}
        if chosen.arch != "lstm":
            size["num_heads"] = max(1, chosen.hidden_size // 64)
        train: dict[str, Any] = {"max_steps": chosen.tuning_steps, "num_validations": 20, **RECIPES[choice.recipe]}
        if arm.masking:
            train["init_from"] = str(source)
        return {
            "task": WORK[work].task,
            "seed": seed,
            "data": self.data(work, seed),
            "tokenizer": {"file": str(source / "tokenizer.json")},
            "model": {"arch": chosen.arch, **size, **SHARED_OPTIONS[chosen.arch], "dropout": choice.dropout, **choice.setup},
            "train": train,
        }

    def beside(self, work: str, name: str, seed: int) -> dict[str, Any]:
        """The defaults of weft, or a baseline."""
        model = WORK[work].defaults[name]
        values = {"task": WORK[work].task, "seed": seed, "data": self.data(work, seed), "model": model}
        return values if model["arch"] == "logistic-regression" else {**values, "train": {}}


# ---- results


def measured(runner: Runner, names: Sequence[str]) -> list[ItemStatistics]:
    """What each run gets right of its test data, item by item."""
    found = []
    for name in names:
        run: Any = weft.load(runner.path(name), device=runner.device)
        found.append(run.evaluate().items)
    return found


def shown(found: Estimate, sign: str = "") -> str:
    if found.low is None or found.high is None:
        return f"{found.value:{sign}.2f}"
    return f"{found.value:{sign}.2f} ({found.low:{sign}.2f} to {found.high:{sign}.2f})"


def less(a: Sequence[BootstrapSamples], b: Sequence[BootstrapSamples]) -> Estimate:
    """The gain of a over b, whose seeds have the same data and whose items are drawn alike."""
    gains = [BootstrapSamples(x.value - y.value, x.again - y.again, x.items) for x, y in zip(a, b, strict=True)]
    return estimate(gains)


def report(work: str, runner: Runner, names: Mapping[str, Sequence[str]], about: Mapping[str, str]) -> None:
    """A table of one task: of each arm the score over seeds, and what it gains."""
    every = [name for group in names.values() for name in group]
    function: Callable[..., Any] = WORK[work].function
    scored = dict(zip(every, bootstrap(measured(runner, every), {"": function}), strict=True))
    arms = {arm: [scored[name][""] for name in group] for arm, group in names.items()}
    print(f"\n{work}: {WORK[work].score} on {arms[SCRATCH][0].items:,} test items, mean of {len(names[SCRATCH])} seeds")
    print(f"{'':<18} {'score (95%)':<26} {'gain over scratch':<26} by seed; what was chosen")
    for arm, runs in arms.items():
        gain = "" if arm == SCRATCH else shown(less(runs, arms[SCRATCH]), "+")
        seeds = " ".join(f"{run.value:.2f}" for run in runs)
        print(f"{arm:<18} {shown(estimate(runs)):<26} {gain:<26} {seeds}; {about[arm]}")
    sys.stdout.flush()


def compare(work: str, plan: Plan) -> None:
    """Choose for each arm on the first seed, train the other seeds, score all of them once."""
    runner, seeds = plan.runner, range(1, plan.chosen.seeds + 1)
    grid = {plan.name(work, arm, choice, 1): (arm, choice) for arm in plan.arms for choice in plan.choices(work, arm)}
    scores = runner.train({name: plan.values(work, *parts, 1) for name, parts in grid.items()}, f"{work}, choosing")
    names, about, runs = dict[str, list[str]](), dict[str, str](), dict[str, dict[str, Any]]()
    for arm in plan.arms:
        own = [name for name, (other, _) in grid.items() if other == arm]
        best = max(own, key=lambda name: scores[name])
        choice = grid[best][1]
        names[arm.name] = [plan.name(work, arm, choice, seed) for seed in seeds]
        about[arm.name] = f"{choice} (valid {scores[best]:.2f}, best of {len(own)})"
        runs |= {name: plan.values(work, arm, choice, seed) for seed, name in zip(seeds, names[arm.name], strict=True)}
    for name in () if plan.chosen.bare else WORK[work].defaults:
        names[name], about[name] = [f"{work}-{name}-{seed}" for seed in seeds], "as it comes, with tokens of its own"
        runs |= {f"{work}-{name}-{seed}": plan.beside(work, name, seed) for seed in seeds}
    runner.train(runs, f"{work}, all seeds")
    report(work, runner, names, about)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/pretraining"), help="finished runs are kept")
    parser.add_argument("--only", action="append", choices=list(WORK))
    parser.add_argument("--arch", choices=list(SHARED_OPTIONS), default="transformer")
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--masking", default="token,span", help="of masked language models; an arm each")
    parser.add_argument(
        "--text", choices=("sets", "all"), default="sets", help="the training sets; all: Tatoeba and Multi30k too"
    )
    parser.add_argument("--steps", type=int, default=4000, help="of pre-training")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="of pre-training")
    parser.add_argument("--tuning-steps", type=int, default=400, help="of fine-tuning, and from scratch")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="to choose from, for every arm alike")
    parser.add_argument("--dropouts", default="0.1,0.3", help="dropouts to choose from, the same for every arm")
    parser.add_argument("--bare", action="store_true", help="without what weft does by default, and baselines")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    chosen = parser.parse_args()
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data DIR\n")
    if unknown := set(chosen.recipes.split(",")) - set(RECIPES):
        parser.error(f"--recipes: unknown recipe {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    return chosen


def main() -> None:
    chosen = arguments()
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    text = write_text(chosen.data, chosen.output_dir / "text.txt", more=chosen.text == "all")
    write_tenths(examples(chosen.data), chosen.output_dir, chosen.seeds)
    runner, maskings = Runner(chosen), chosen.masking.split(",")
    arms = [Arm(SCRATCH, None), *(Arm(f"masked by {masking}", masking) for masking in maskings)]
    runs = {
        arm.source(seed): pretraining(chosen, text, arm.masking, seed)
        for arm in arms
        if arm.masking
        for seed in range(1, chosen.seeds + 1)
    }
    scores = runner.train(runs, "pre-training")
    words = sum(len(line.split()) for line in read_lines(text))
    print(f"text: {sum(1 for _ in read_lines(text)):,} lines, {words:,} words, of {chosen.text}")
    size = f"{chosen.arch}, {chosen.num_layers} x {chosen.hidden_size}"
    print(f"pre-training: {size}, {chosen.steps:,} steps of {chosen.batch_tokens:,} tokens")
    for name, score in scores.items():
        print(f"  {name}: {-score:.4f} nats of a hidden token in validation")
    for work in chosen.only or WORK:
        compare(work, Plan(runner, chosen, arms))


if __name__ == "__main__":
    main()
