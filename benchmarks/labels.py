"""Classification and tagging without pretrained vectors: TREC-6, SST-2, SST-5, names by language, parts of speech (UD English
EWT) and entities (WNUT-17). Baselines and networks with recommended settings: an experiment names an architecture, if anything.

"pretrained" is a Transformer initialized from a masked language model that is trained here first, on 1.8 million words without
labels: the training sets, and the English of Tatoeba and Multi30k (on a GPU: --models pretrained --device cuda; finished runs
are kept). For SST-2 it is larger and is first fine-tuned on the labels of SST-5 for the same sentences.

Targets: TREC-6 test 90.0 (CNN-rand 88.2); SST-2 82.0; SST-5 41 (sentences only); names of 18 languages 83 with an LSTM or GRU
(stratified 80/10/10; "distinct" removes duplicates within a language: only 108 of the 2,000 Arabic names are distinct); EWT
dev UPOS 95.2; WNUT-17 dev span F1 26.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pretraining
from _common import SHARED_DATA, require_data, train_subprocess, verdict

import weft

# sizes of the pretrained Transformers
SMALL: dict[str, Any] = {"arch": "transformer", "num_layers": 4, "hidden_size": 256}
LARGE: dict[str, Any] = {"arch": "transformer", "num_layers": 6, "hidden_size": 512}
PRETRAINING_STEPS = {SMALL["hidden_size"]: 8000, LARGE["hidden_size"]: 8400}
FINE_TUNING: dict[str, Any] = {"max_steps": 400, "lr": 3e-4, "num_validations": 20, "compile": False}


def _pretrained(size: dict[str, Any]) -> dict[str, Any]:
    model = {
        **size,
        "num_heads": size["hidden_size"] // 64,
        **pretraining.SHARED_OPTIONS["transformer"],
        "dropout": 0.1,
        "pooling": "max",
    }
    return {"model": model, "train": FINE_TUNING}


BASELINES = ("naive-bayes", "logistic-regression")
NAMES: dict[str, dict[str, Any]] = {arch: {"model": {"arch": arch}} for arch in (*BASELINES, "gru")}
WORDS = {**NAMES, "conv": {"model": {"arch": "conv"}}, "pretrained": _pretrained(SMALL)}
# initialized from an SST-5 model of the same sentences, with a lower learning rate
SENTIMENT = {**WORDS, "pretrained": {**_pretrained(LARGE), "train": {**FINE_TUNING, "lr": 1e-4, "init_strict": False}}}
TAGS: dict[str, dict[str, Any]] = {"lstm": {}}  # the recommended architecture, so it is not named


def _sst_files(name: str) -> dict[str, str]:
    return {split: f"sst/stsa.{name}.{end}" for split, end in (("train", "train"), ("valid", "dev"), ("test", "test"))}


class Experiment(NamedTuple):
    task: str
    data: dict[str, Any]  # paths are relative to --data
    models: dict[str, dict[str, Any]]
    metric: str
    target: float | None


EXPERIMENTS = {
    "trec": Experiment(
        "classification",
        {"train": "trec/TREC.train.all", "valid": 0.1, "test": "trec/TREC.test.all", "encoding": "latin-1"},
        WORDS, "accuracy", 90.0,
    ),
    "sst2": Experiment("classification", _sst_files("binary"), SENTIMENT, "accuracy", 82.0),
    "sst5": Experiment("classification", _sst_files("fine"), WORDS, "accuracy", 41.0),
    "names": Experiment("classification", {"train": "names-by-language", "valid": 0.1, "test": 0.1}, NAMES, "accuracy", 83.0),
    "distinct": Experiment(
        "classification", {"train": "names-by-language", "valid": 0.1, "test": 0.1}, NAMES, "accuracy", None
    ),
    "ewt": Experiment(
        "tagging",
        {"train": "ud-english-ewt/en_ewt-ud-train.conllu.gz", "valid": "ud-english-ewt/en_ewt-ud-dev.conllu.gz"},
        TAGS, "token_accuracy", 95.2,
    ),
    "wnut": Experiment(
        "tagging",
        {"train": "wnut17-ner/wnut17train.conll", "valid": "wnut17-ner/emerging.dev.conll"},
        TAGS, "span_f1", 26.0,
    ),
}  # fmt: skip


def write_distinct_names(source: Path, directory: Path) -> Path:
    """Write a file of names for each language without duplicates, so that no name is in both training and test data."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.txt")):
        names = dict.fromkeys(line for line in path.read_bytes().decode().split("\n") if line.strip())
        (directory / path.name).write_bytes("".join(f"{name}\n" for name in names).encode())
    return directory


def train(values: dict[str, Any], name: str, args: argparse.Namespace, overrides: Sequence[str]) -> tuple[Path, float]:
    """Train in another process; returns the run directory and the seconds. A finished run is kept."""
    run_dir = (args.output_dir / f"{name}-{args.seed}").resolve()
    return run_dir, train_subprocess(values, run_dir, threads=args.threads, overrides=overrides)


def train_masked_lm(size: dict[str, Any], args: argparse.Namespace) -> Path:
    """The run of a masked language model that is trained on all text without labels."""
    args.output_dir.mkdir(parents=True, exist_ok=True)
    text = pretraining.write_text(args.data, args.output_dir / "text.txt", extended=True)
    steps = args.masked_steps or PRETRAINING_STEPS[size["hidden_size"]]
    options = argparse.Namespace(**size, steps=steps, batch_tokens=8192)
    values = pretraining.masked_lm_values(options, text, "token", args.seed)
    overrides = [f"train.device={args.device}", "train.compile=false"]
    return train(values, f"masked-{size['hidden_size']}", args, overrides)[0]


def with_pretraining(values: dict[str, Any], size: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """A run file that uses the weights and the tokenizer of a masked language model."""
    source = train_masked_lm(size, args)
    tokenizer = {"file": str(source / "tokenizer.json")}
    train = {**values["train"], "init_from": str(source), "device": args.device}
    return {**values, "tokenizer": tokenizer, "train": train}


def train_sst5(args: argparse.Namespace) -> Path:
    """The run that the SST-2 model is initialized from."""
    files = {split: str((args.data / path).resolve()) for split, path in _sst_files("fine").items()}
    values = {"task": "classification", "seed": args.seed, "data": files, **_pretrained(LARGE)}
    return train(with_pretraining(values, LARGE, args), "graded", args, args.set)[0]


def run_values(name: str, model: str, args: argparse.Namespace) -> dict[str, Any]:
    task, data, models, _, _ = EXPERIMENTS[name]
    files = {key: str((args.data / value).resolve()) if "/" in str(value) else value for key, value in data.items()}
    values: dict[str, Any] = {"task": task, "seed": args.seed, "data": files, **models[model]}
    if models is NAMES:
        source = args.data / data["train"]
        directory = write_distinct_names(source, args.output_dir / "names") if name == "distinct" else source
        files["train"] = str(directory.resolve())
    if model in BASELINES:
        return values
    values["train"] = {**models[model].get("train", {}), "device": args.device}
    if model == "pretrained" and models is SENTIMENT:
        values = with_pretraining(values, LARGE, args)
        values["train"]["init_from"] = str(train_sst5(args))
    elif model == "pretrained":
        values = with_pretraining(values, SMALL, args)
    return values


def evaluate(name: str, model: str, args: argparse.Namespace) -> None:
    """Train a model and print its scores."""
    experiment = EXPERIMENTS[name]
    run_dir, seconds = train(run_values(name, model, args), f"{name}-{model}", args, args.set)
    run = weft.load(run_dir)
    has_test = "test" in experiment.data
    for split in ("valid", "test") if args.test and has_test else ("valid",):
        is_fraction = isinstance(experiment.data[split], float)
        if is_fraction and split == "valid":
            continue  # training reports it
        data = None if is_fraction else list(run.config.datasets[split].paths)
        score = run.evaluate(data)[experiment.metric]
        interval = "" if score.low is None else f" [{score.low:.2f}, {score.high:.2f}]"
        result, target = "", experiment.target
        if target is not None and (split == "test" or not has_test):
            result = f"  target {target}: {verdict(score.value >= target)}"
        print(f"{name:<8} {model:<12} {split:<5} {score.name} {score.value:.2f}{interval}  {seconds:.0f} s{result}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/labels"))
    parser.add_argument("--only", action="append", choices=list(EXPERIMENTS))
    parser.add_argument("--models", help="comma-separated models")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--masked-steps", type=int, help="steps of pretraining (default: 8000; SST-2: 8400)")
    parser.add_argument("--test", action="store_true", help="evaluate on the test data as well; do not tune on it")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    require_data(parser, args.data)
    for name in args.only or EXPERIMENTS:
        models = EXPERIMENTS[name].models
        requested = args.models.split(",") if args.models else list(models)
        for model in models:
            if model in requested:
                evaluate(name, model, args)


if __name__ == "__main__":
    main()
