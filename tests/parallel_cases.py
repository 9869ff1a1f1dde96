"""Small runs of every task, to compare several processes with one.

Dropout is 0, because its masks depend on the number of processes, unless that divides the number of micro-batches: then the run
has dropout, and augmented images.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "examples" / "data"
GPT = {"arch": "gpt", "num_layers": 2, "hidden_size": 16, "num_heads": 2, "dropout": 0.0}
LSTM = {"arch": "lstm", "num_layers": 1, "hidden_size": 12, "dropout": 0.0}
CHARS = {"type": "char"}


def case(task: str, data: dict[str, Any], model: dict[str, Any], tokenizer: dict[str, Any] | None = None, **train: Any) -> Any:
    """A run file; `train` are options of [train]."""
    values = {
        "task": task,
        "seed": 3,
        "recommend": False,
        "data": {"valid": 0.1, "test": 0.1, **data},
        "model": model,
        "train": {"max_steps": 3, "batch_tokens": 256, "num_validations": 1, "device": "cpu", "lr": 3e-3, **train},
    }
    return values if tokenizer is None else {**values, "tokenizer": tokenizer}


# the first lines of these files are enough
LINES = {
    "names.txt": 200, "reviews.csv": 200, "reviews.txt": 100, "spelling.tsv": 120, "entities.txt": 400, "purchases.tsv": 80,
    "spoken.tsv": 24, "shapes.tsv": 40, "preferences.jsonl": 80, "instructions.jsonl": 80, "praise.jsonl": 80,
    "openings.jsonl": 12,
}  # fmt: skip


def shorten(root: Path, *, whole: bool = False) -> None:
    """Write the first lines of the data files to a directory, or all of them."""
    for name, count in LINES.items():
        lines = (DATA / name).read_text(encoding="utf-8").split("\n")
        count = len(lines) - 1 if whole else count
        (root / name).write_text("\n".join(lines[:count]) + "\n", encoding="utf-8")


def cases(root: Path) -> dict[str, Any]:
    """Run files by name, for a directory with the data and the runs of `bases`."""
    base_run, reward_run = str(root / "base"), str(root / "judge")

    def file(name: str) -> str:
        return str((DATA if name.endswith(".zip") else root) / name)

    tales, reviews = {"train": file("names.txt")}, {"train": file("reviews.csv"), "max_length": 24, "truncate": True}
    pairs = {"train": file("spelling.tsv"), "max_length": 60}
    start = {"tokenizer": {"file": f"{base_run}/tokenizer.json"}, "init_from": base_run}
    responses = {"max_length": 64}
    words, window = {"type": "word"}, {"context_length": 16}
    return {
        "lm": case("lm", {**tales, **window}, GPT, CHARS, ema_decay=0.9),
        "lm-muon-accumulation": case(
            "lm",
            {**tales, **window},
            {**GPT, "tie_embeddings": True, "zero_init": False},
            CHARS,
            optimizer="muon",
            micro_batches=3,
        ),
        "lm-stream-sgd": case("lm", {**tales, **window, "read_as": "stream"}, LSTM, CHARS, optimizer="sgd"),
        "lm-lines-experts": case("lm", {**tales, "read_as": "lines"}, {**GPT, "num_experts": 4}, CHARS, optimizer="muon"),
        "lm-checkpointed": case(
            "lm", {**tales, **window}, {**GPT, "num_experts": 4}, CHARS, activation_checkpointing=True, gradual_unfreezing=0.5
        ),
        "masked-lm": case("masked-lm", {**tales, "read_as": "lines"}, {**GPT, "arch": "transformer"}, CHARS),
        "denoising": case("denoising", {**tales, "max_length": 40, "truncate": True}, {**GPT, "arch": "transformer"}, CHARS),
        "seq2seq": case("seq2seq", pairs, {"arch": "transformer", **{k: v for k, v in GPT.items() if k != "arch"}}, CHARS),
        "seq2seq-input-feeding": case(
            "seq2seq", pairs, {"arch": "lstm-input-feeding", "hidden_size": 12, "dropout": 0.0}, CHARS, label_smoothing=0.1
        ),
        "classification": case("classification", reviews, {**LSTM, "class_weight": "balanced"}, words, r_drop=1.0),
        "classification-frozen": case(
            "classification", reviews, {**GPT, "arch": "transformer"}, words, lr_multipliers={"encoder.stack": 0.0}
        ),
        "tagging": case("tagging", {"train": file("entities.txt")}, {**LSTM, "head": "crf"}),
        "qa": case("qa", {"train": file("purchases.tsv"), "max_length": 32, "doc_stride": 8}, {**GPT, "arch": "transformer"}),
        "asr": case(
            "asr",
            {"train": file("spoken.tsv"), "root": file("spoken.zip"), "sample_rate": 8000, "valid": 0.2},
            {"arch": "gru", "num_layers": 1, "hidden_size": 8, "dropout": 0.0, "num_freq_masks": 0, "num_time_masks": 0},
            batch_tokens=512,
        ),
        "captioning": case(
            "captioning",
            {"train": file("shapes.tsv"), "root": file("shapes.zip"), "valid": 0.2},
            {"arch": "lstm", "hidden_size": 8, "dropout": 0.3},
            {"type": "whitespace"},
            micro_batches=4,
        ),
        "reward-model": case("reward-model", {"train": file("preferences.jsonl")}, LSTM),
        "instruction-tuning": case(
            "instruction-tuning", {"train": file("instructions.jsonl"), **responses}, GPT, {"type": "bpe", "vocab_size": 300}
        ),
        "dpo": case("dpo", {"train": file("praise.jsonl"), **responses}, GPT, start["tokenizer"], init_from=base_run),
        "policy-gradient": case(
            "policy-gradient",
            {"train": file("openings.jsonl"), "valid": file("openings.jsonl"), "test": None, "reward_from": reward_run}
            | {"reward_label": "good", "max_length": 40},
            {**GPT, "algorithm": "rloo", "max_new_tokens": 6},
            start["tokenizer"],
            init_from=base_run,
            max_steps=2,
        ),
    }


def bases(root: Path) -> dict[str, Any]:
    """The runs that other runs start from."""
    reviews = case("lm", {"train": str(root / "reviews.txt"), "context_length": 40}, GPT, CHARS, max_steps=2)
    judge = case("classification", {"train": str(root / "reviews.csv")}, {"arch": "naive-bayes"})
    del judge["train"]
    return {"base": reviews, "judge": judge}


SMOOTH = {"max_steps": 200, "batch_tokens": 512, "optimizer": "adamw", "lr": 1e-3, "warmup_ratio": 0.2}
# Adam and Muon divide gradients by their size, so that rounding is as large as the step where they are small. That is too much
# for a mixture of experts: a token with two experts of nearly the same probability takes the one or the other.
SGD = {"optimizer": "sgd", "lr": 3e-2}
SMOOTH_BY_NAME: dict[str, dict[str, Any]] = {
    "lm-muon-accumulation": {"optimizer": "muon", "muon_lr": 5e-3},
    "lm-stream-sgd": SGD,
    "lm-lines-experts": SGD,
    "lm-checkpointed": SGD,
    "classification": {"lr": 3e-3},
    "classification-frozen": {"lr": 1e-2},
    "captioning": {**SGD, "lr": 1e-2, "batch_tokens": 256, "micro_batches": 1},
}
# no random numbers: those of micro-batches differ
NO_AUGMENTATION: dict[str, dict[str, Any]] = {
    "asr": {"speed_perturbation": [1.0]},
    "captioning": {"dropout": 0.0, "max_shift": 0, "brightness": 0.0, "contrast": 0.0, "encoder": {"conv_channels": 4}},
}


def smooth(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A run file of `cases` for 200 steps in which rounding grows little: with a low learning rate, long warmup and all data
    (see `shorten`), the loss falls clearly, but not to 0."""
    values = copy.deepcopy(values)
    values["train"] |= SMOOTH | SMOOTH_BY_NAME.get(name, {})
    values["model"] |= NO_AUGMENTATION.get(name, {})
    return values


def with_strategy(values: dict[str, Any], strategy: str) -> dict[str, Any]:
    """The run file with a value of train.parallel."""
    values = copy.deepcopy(values)
    values["data"] = {name: value for name, value in values["data"].items() if value is not None}
    values["train"]["parallel"] = strategy
    return values
