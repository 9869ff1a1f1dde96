"""Small runs with random weights, for tests of exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from label_runs import multilabel_rows, single_label_rows, tagged_sentences, text_pair_rows, write_conll, write_tsv
from small_runs import make_text, train_here

from weft.runs.load import load

TRAIN = {"max_steps": 1, "device": "cpu", "num_validations": 1, "batch_tokens": 64}
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
LLAMA = {
    "arch": "transformer",
    "position_encoding": "rotary",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "head_bias": False,
}


def randomized(run: Any, scale: float = 0.3) -> Any:
    """Weights that are large enough that every part affects the output."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in run.model.named_parameters():
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale + center)
    return run


def trained(place: Path, values: dict[str, Any]) -> Any:
    train_here({"recommend": False, **values, "train": {**TRAIN, **values.get("train", {})}}, place / "run")
    return randomized(load(place / "run", device="cpu"))


def lm_values(place: Path, model: dict[str, Any], **data: Any) -> dict[str, Any]:
    text = make_text(place / "text.txt", words=300)
    return {
        "task": "lm",
        "data": {"train": str(text), "context_length": 24, **data},
        "tokenizer": {"type": "bpe", "vocab_size": 280},
        "model": {**SMALL, **model},
    }


def lm_run(place: Path, model: dict[str, Any], *, tokenizer: dict[str, Any] | None = None, **data: Any) -> Any:
    values = lm_values(place, model, **data)
    return trained(place, values if tokenizer is None else {**values, "tokenizer": tokenizer})


def encoder_run(place: Path, task: str, model: dict[str, Any], **data: Any) -> Any:
    """A run with a text encoder: of masked-lm, or of classification or tagging with few rows."""
    tokenizer: dict[str, Any] = {"type": "wordpiece", "vocab_size": 80}
    options: dict[str, Any] = {"max_length": 24}
    if task == "masked-lm":
        train, options = make_text(place / "text.txt", words=200), {"read_as": "lines", "context_length": 24}
    elif task == "tagging":
        options["max_length"] = 60
        train = write_conll(place / "train.txt", tagged_sentences(30))
    elif "text_column" in data:
        train = write_tsv(place / "train.tsv", text_pair_rows(30), header="label\ta\tb")
    else:
        rows = multilabel_rows(30) if data.get("multilabel") else single_label_rows(30)
        train = write_tsv(place / "train.tsv", rows)
    values = {"task": task, "data": {"train": str(train), **options, **data}, "tokenizer": tokenizer}
    return trained(place, {**values, "model": {"arch": "bert", **SMALL, **model}})
