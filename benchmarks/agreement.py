"""Subject-verb agreement of n-gram models, recurrent networks and Transformers: does the verb agree with the subject, or with
the nearest noun?

Training text: lowercased English (Tatoeba, Multi30k, UD EWT, Shakespeare: 1.6 million words, written to --output-dir). Minimal
pairs: the distractor paradigms of BLiMP ("a niece of most senators hasn't ...") and verbs with 0 to 4 attractors (Linzen et
al. 2016). With --wikipedia, the sentences of Linzen et al. are training text, and only BLiMP is evaluated. Target: on the
distractor paradigms, the n-gram model is below 50% and every network above 50%, each trained within 30 minutes. Published
(5-gram / LSTM / GPT-2, 83 million words and more): relational noun 23.5 / 76.0 / 79.5, relative clause 21.7 / 62.7 / 65.7.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _common import SHARED_DATA, require_data, train_subprocess, verdict

import weft
from weft.comparison.breakdown import subset
from weft.comparison.minimal_pairs import evaluate_minimal_pairs, rows
from weft.data.minimal_pair_files import MinimalPair, read_suite
from weft.metrics.items import ItemStatistics

SUITES = ("blimp/*subject_verb_agreement*.jsonl.gz", "blimp/distractor_*.jsonl.gz", "agreement-linzen/*.gold.gz")
NETWORK: dict[str, Any] = {"hidden_size": 256, "num_layers": 1, "dropout": 0.2, "tie_embeddings": True}
MODELS: dict[str, dict[str, Any]] = {
    "ngram": {"model": {"arch": "ngram", "order": 5}},
    "rnn": {"model": {"arch": "rnn", **NETWORK}},
    "lstm": {"model": {"arch": "lstm", **NETWORK}},
    "gru": {"model": {"arch": "gru", **NETWORK}},
    "transformer": {"model": {"arch": "transformer", **NETWORK, "num_layers": 2, "num_heads": 4}},
    "masked": {"task": "masked-lm", "model": {"arch": "transformer", "hidden_size": 256, "num_layers": 4, "num_heads": 4}},
}
DISTRACTORS = "distractor paradigms"


def _tatoeba(directory: Path) -> Iterator[str]:
    for line in gzip.decompress((directory / "tatoeba-eng-fra" / "fra.txt.gz").read_bytes()).decode().split("\n"):
        yield line.split("\t")[0]


def _multi30k(directory: Path) -> Iterator[str]:
    yield from gzip.decompress((directory / "multi30k" / "train.en.gz").read_bytes()).decode().split("\n")


def _ewt(directory: Path) -> Iterator[str]:
    text = gzip.decompress((directory / "ud-english-ewt" / "en_ewt-ud-train.conllu.gz").read_bytes()).decode()
    yield from re.findall(r"^# text = (.*)$", text, re.MULTILINE)


def _shakespeare(directory: Path) -> Iterator[str]:
    """The sentences of all speeches, without the names of the speakers."""
    for speech in (directory / "tinyshakespeare" / "input.txt").read_bytes().decode().split("\n\n"):
        words = " ".join(line for line in speech.split("\n") if not line.endswith(":"))
        yield from re.split(r"(?<=[.!?]) ", words)


def _wikipedia(directory: Path) -> Iterator[str]:
    """The sentences of Linzen et al. (2016)."""
    text = gzip.decompress((directory / "agreement-linzen" / "subj_agr_filtered.text.gz").read_bytes()).decode()
    yield from text.replace(" <eos>", "").split("\n")


def write_text(directory: Path, path: Path, *, wikipedia: bool) -> Path:
    """Write all distinct sentences in random order."""
    sources = (_tatoeba, _multi30k, _ewt, _shakespeare, *((_wikipedia,) if wikipedia else ()))
    lines = list(dict.fromkeys(line.strip() for read in sources for line in read(directory) if line.strip()))
    random.Random(1).shuffle(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path.resolve()


def run_values(model: str, text: Path, args: argparse.Namespace) -> dict[str, Any]:
    train = {"max_minutes": args.max_minutes, "batch_tokens": 1024, "num_validations": 5, "device": args.device}
    return {
        "task": "lm",
        "seed": args.seed,
        "data": {"train": str(text), "valid": 0.01, "read_as": "lines"},
        "tokenizer": {"type": args.tokenizer, "vocab_size": args.vocab_size, "lowercase": True},
        **MODELS[model],
        **({} if model == "ngram" else {"train": train}),
    }


def print_table(statistics: dict[str, ItemStatistics], pairs: list[MinimalPair]) -> bool:
    """Print the accuracies by group of pairs; returns whether the target is met."""
    groups = rows({name: [items] for name, items in statistics.items()}, pairs)
    print(f"{'':<54}{'pairs':>7}" + "".join(f"{name:>21}" for name in statistics))
    for group in groups:
        cells = [f"{score.value:.1f} [{score.low:.1f}, {score.high:.1f}]" for score in group.scores.values()]
        print(f"{group.by + ': ' + group.name:<54}{group.size:>7,}" + "".join(f"{cell:>21}" for cell in cells))
    (distractors,) = (group for group in groups if group.name == DISTRACTORS)
    is_met = {name: (score.value < 50) == (name == "ngram") for name, score in distractors.scores.items()}
    for name, score in distractors.scores.items():
        target = "below 50" if name == "ngram" else "above 50"
        print(f"{DISTRACTORS}: {name} {score.value:.1f}, target {target}: {verdict(is_met[name])}")
    return all(is_met.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/agreement"))
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated models")
    parser.add_argument("--max-minutes", type=float, default=10.0, help="training time of each network")
    parser.add_argument("--tokenizer", default="word")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="number of models to train in parallel")
    parser.add_argument("--threads", type=int, default=2, help="threads per model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], help="change an option of every network's run")
    parser.add_argument(
        "--wikipedia", action="store_true", help="train on the sentences of Linzen et al. as well, and evaluate on BLiMP only"
    )
    parser.add_argument("--skip-unknown", action="store_true", help="skip pairs whose critical word is out of vocabulary")
    args = parser.parse_args()
    require_data(parser, args.data)
    text = write_text(args.data, args.output_dir / "text.txt", wikipedia=args.wikipedia)
    suites = [suite for suite in SUITES if not args.wikipedia or suite.startswith("blimp")]
    pairs = read_suite([path for suite in suites for path in sorted(args.data.glob(suite))]).pairs

    def train(model: str) -> float:
        overrides = () if model == "ngram" else args.set
        run_dir = args.output_dir / f"{model}-{args.seed}"
        return train_subprocess(run_values(model, text, args), run_dir, threads=args.threads, overrides=overrides)

    models = args.models.split(",")
    with ThreadPoolExecutor(args.jobs) as pool:
        train_seconds = dict(zip(models, pool.map(train, models), strict=True))
    statistics: dict[str, ItemStatistics] = {}
    for model in models:
        start = time.perf_counter()
        run = weft.load(args.output_dir / f"{model}-{args.seed}", device=args.device)
        statistics[model] = evaluate_minimal_pairs(run, pairs)
        eval_seconds = time.perf_counter() - start
        print(f"{model}: trained in {train_seconds[model]:.0f} s, evaluated in {eval_seconds:.0f} s", flush=True)
    if args.skip_unknown:
        has_unknown = np.any([items.statistics["unknown_choice"] > 0 for items in statistics.values()], axis=0)
        known = np.flatnonzero(~has_unknown)
        pairs = [pairs[i] for i in known]
        statistics = {name: subset(items, known) for name, items in statistics.items()}
    sys.exit(0 if print_table(statistics, pairs) else 1)


if __name__ == "__main__":
    main()
