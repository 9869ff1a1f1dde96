"""Labels of texts and of words: TREC-6, SST-2 and SST-5, the language of a name, parts of speech (UD English EWT), entities
(WNUT-17); no pretrained vectors, baselines beside each network, one recipe a task, chosen on validation data. "pretrained" is
a Transformer that starts from a masked language model, trained here first, on 1.8 million words without labels: the training
sets, and the English of Tatoeba and Multi30k (for a GPU: --models pretrained --device cuda; finished runs are kept). For SST-2
it is larger, and learns SST-5's labels of the same sentences first.

The bars: TREC-6 test 90.0 (CNN-rand 88.2), SST-2 82.0, SST-5 41 (sentences only), names of 18 languages 83 by an LSTM or GRU
(stratified 80/10/10 of the lines as they are; of Arabic's 2,000 only 108 differ, so "distinct" is the same where a name that
is listed twice for a language counts once), EWT dev UPOS 95.0 within 20 minutes on two cores; WNUT-17 dev span F1 is reported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pretraining
import tomli_w

import weft

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
CHARACTERS: dict[str, Any] = {"features": {"analyzer": "char_wb", "ngram_range": [1, 4]}}
# of a Transformer that starts from a masked language model, and the steps that one is trained for
SMALL: dict[str, Any] = {"arch": "transformer", "num_layers": 4, "hidden_size": 256}
LARGE: dict[str, Any] = {"arch": "transformer", "num_layers": 6, "hidden_size": 512}
MASKED_STEPS = {SMALL["hidden_size"]: 8000, LARGE["hidden_size"]: 8400}
TUNING: dict[str, Any] = {"max_steps": 400, "lr": 3e-4, "num_validations": 20, "compile": False}


def _pretrained(size: dict[str, Any]) -> dict[str, Any]:
    inner = {
        "num_heads": size["hidden_size"] // 64,
        **pretraining.SHARED_OPTIONS["transformer"],
        "dropout": 0.1,
        "pooling": "max",
    }
    return {"model": {**size, **inner}, "train": TUNING}


WORDS: dict[str, dict[str, Any]] = {
    "naive-bayes": {"model": {"arch": "naive-bayes"}},
    "logistic-regression": {"model": {"arch": "logistic-regression", "C": 10.0}},
    "conv": {"model": {"arch": "conv"}},
    "gru": {"model": {"arch": "gru", "hidden_size": 384}, "train": {"max_steps": 300}},
    "pretrained": _pretrained(SMALL),
}
# from weights that know five degrees of the same sentences, slowly
SENTIMENT = {**WORDS, "pretrained": {**_pretrained(LARGE), "train": {**TUNING, "lr": 1e-4, "init_strict": False}}}
NAMES: dict[str, dict[str, Any]] = {
    "logistic-regression": {"model": {"arch": "logistic-regression", "C": 10.0, **CHARACTERS}},
    "gru": {
        "model": {"arch": "gru", "hidden_size": 384, "embedding_dim": 64, "dropout": 0.5, "pooling": "last"},
        "train": {"max_steps": 3000},
    },
}
# words in lower case, some of them dropped, beside letters, which know what was upper case and what new words are like
WORDS_AND_LETTERS: dict[str, Any] = {
    "arch": "lstm", "embedding_dropout": 0.3, "word_dropout": 0.2,
    "char_encoder": {"hidden_size": 256, "embedding_dim": 64, "pooling": "last"},
}  # fmt: skip
LOWER: dict[str, Any] = {"type": "whitespace", "vocab_size": 20000, "lowercase": True}
TAGGING: dict[str, Any] = {"max_epochs": 12.0, "lr": 3e-3, "ema_decay": 0.998}
TAGS: dict[str, dict[str, Any]] = {
    "lstm": {"tokenizer": LOWER, "model": {**WORDS_AND_LETTERS, "head": "linear"}, "train": TAGGING}
}
ENTITIES: dict[str, dict[str, Any]] = {
    "lstm": {
        "tokenizer": LOWER,
        "model": {**WORDS_AND_LETTERS, "head": "crf", "embedding_dropout": 0.5, "word_dropout": 0.4},
        "train": {**TAGGING, "max_epochs": 20.0},
    }
}


def _sst(name: str) -> dict[str, str]:
    return {split: f"sst/stsa.{name}.{end}" for split, end in (("train", "train"), ("valid", "dev"), ("test", "test"))}


BASELINES = ("naive-bayes", "logistic-regression")
# task, data (paths in --data), models, the score, the bar
WORK: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]], str, float | None]] = {
    "trec": (
        "classification",
        {"train": "trec/TREC.train.all", "valid": 0.1, "test": "trec/TREC.test.all", "encoding": "latin-1"},
        WORDS, "accuracy", 90.0,
    ),
    "sst2": ("classification", _sst("binary"), SENTIMENT, "accuracy", 82.0),
    "sst5": ("classification", _sst("fine"), WORDS, "accuracy", 41.0),
    "names": ("classification", {"train": "names-by-language", "valid": 0.1, "test": 0.1}, NAMES, "accuracy", 83.0),
    "distinct": ("classification", {"train": "names-by-language", "valid": 0.1, "test": 0.1}, NAMES, "accuracy", None),
    "ewt": (
        "tagging",
        {"train": "ud-english-ewt/en_ewt-ud-train.conllu.gz", "valid": "ud-english-ewt/en_ewt-ud-dev.conllu.gz"},
        TAGS, "token_accuracy", 95.0,
    ),
    "wnut": (
        "tagging",
        {"train": "wnut17-ner/wnut17train.conll", "valid": "wnut17-ner/emerging.dev.conll"},
        ENTITIES, "span_f1", None,
    ),
}  # fmt: skip


def distinct_names(source: Path, place: Path) -> Path:
    """A directory with a file of names for each language, without duplicates, so that no name is in both train and test."""
    place.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.txt")):
        names = dict.fromkeys(line for line in path.read_bytes().decode().split("\n") if line.strip())
        (place / path.name).write_bytes("".join(f"{name}\n" for name in names).encode())
    return place.resolve()


def train(file: Path, place: Path, chosen: argparse.Namespace) -> float:
    """In a process of its own; the seconds it took. A finished run is kept."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "weft",
        "train",
        str(file),
        "--output-dir",
        str(place),
        "--quiet",
        "--threads",
        chosen.threads,
    ]
    for setting in chosen.set or []:
        command += ["--set", setting]
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def masked(size: dict[str, Any], chosen: argparse.Namespace) -> Path:
    """The run of a masked language model that has read what there is without labels."""
    place = chosen.output_dir / f"masked-{size['hidden_size']}-{chosen.seed}"
    place.parent.mkdir(parents=True, exist_ok=True)
    text = pretraining.write_text(chosen.data, chosen.output_dir / "text.txt", more=True)
    recipe = argparse.Namespace(**size, steps=chosen.masked_steps or MASKED_STEPS[size["hidden_size"]], batch_tokens=8192)
    file = place.with_suffix(".toml")
    file.write_text(tomli_w.dumps(pretraining.pretraining(recipe, text, "token", chosen.seed)))
    train(file, place, argparse.Namespace(threads=chosen.threads, set=[f"train.device={chosen.device}", "train.compile=false"]))
    return place.resolve()


def started(found: dict[str, Any], size: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """A run file with the weights and tokens of a masked language model."""
    source = masked(size, chosen)
    tokens = {"file": str(source / "tokenizer.json")}
    return {**found, "tokenizer": tokens, "train": {**found["train"], "init_from": str(source), "device": chosen.device}}


def graded(chosen: argparse.Namespace) -> Path:
    """The run that SST-2 starts from: it knows five degrees of its sentences."""
    place = chosen.output_dir / f"graded-{chosen.seed}"
    files = {split: str((chosen.data / path).resolve()) for split, path in _sst("fine").items()}
    found = started({"task": "classification", "seed": chosen.seed, "data": files, **_pretrained(LARGE)}, LARGE, chosen)
    place.with_suffix(".toml").write_text(tomli_w.dumps(found))
    train(place.with_suffix(".toml"), place, chosen)
    return place.resolve()


def values(work: str, model: str, chosen: argparse.Namespace) -> dict[str, Any]:
    task, data, models, _, _ = WORK[work]
    files = {name: str((chosen.data / value).resolve()) if "/" in str(value) else value for name, value in data.items()}
    if models is NAMES:
        source = chosen.data / data["train"]
        files["train"] = str((distinct_names(source, chosen.output_dir / "names") if work == "distinct" else source).resolve())
    tokenizer: dict[str, Any] = {"tokenizer": {"type": "char"}} if models is NAMES else {}
    found = {"task": task, "seed": chosen.seed, "data": files, **tokenizer, **models[model]}
    if model in BASELINES:
        return found
    found["train"] = {**models[model].get("train", {}), "device": chosen.device}
    if model == "pretrained" and models is SENTIMENT:
        found = started(found, LARGE, chosen)
        found["train"]["init_from"] = str(graded(chosen))
    elif model == "pretrained":
        found = started(found, SMALL, chosen)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/labels"))
    parser.add_argument("--only", action="append", choices=list(WORK))
    parser.add_argument("--models", help="of each task, these alone, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--masked-steps", type=int, help="of a masked language model (8,000; for SST-2 8,400)")
    parser.add_argument("--test", action="store_true", help="score the test data too; nothing may be chosen by it")
    parser.add_argument("--set", action="append", help="change an option of every run")
    chosen = parser.parse_args()
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data DIR\n")
    for work in chosen.only or WORK:
        _, data, models, score, bar = WORK[work]
        wanted = chosen.models.split(",") if chosen.models else models
        for model in (name for name in models if name in wanted):
            place = chosen.output_dir / f"{work}-{model}-{chosen.seed}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.with_suffix(".toml").write_text(tomli_w.dumps(values(work, model, chosen)))
            seconds = train(place.with_suffix(".toml"), place, chosen)
            run = weft.load(place)
            sources = run.settings.datasets
            for split in ("valid", "test") if chosen.test and "test" in data else ("valid",):
                paths = list(sources[split].paths) if not isinstance(data.get(split), float) else None
                if paths is None and split == "valid":
                    continue  # a fraction of the training data: reported by training
                found = {one.name: one for one in run.evaluate(paths).scores}
                one = found[score]
                wide = "" if one.low is None else f" ({one.low:.2f} to {one.high:.2f})"
                judged = bar is not None and model not in BASELINES and (split == "test" or "test" not in data)
                verdict = f"  bar {bar}: {'met' if one.value >= (bar or 0) else 'MISSED'}" if judged else ""
                print(f"{work:<6} {model:<12} {split:<5} {score} {one.value:.2f}{wide}  {seconds:.0f} s{verdict}", flush=True)


if __name__ == "__main__":
    main()
