"""What presets of several tasks share: how networks of one kind are best trained, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models import encoder_tables

RECURRENT: Mapping[str, Any] = {"lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "batch_tokens": 4096}
MUON: Mapping[str, Any] = {
    "optimizer": "muon",
    "lr": 4e-3,
    "beta2": 0.95,
    "schedule": "linear",
    "weight_decay": 0.1,
    "warmup": 0.0,
}
FINE_TUNED: Mapping[str, Any] = {
    "epochs": 3.0, "batch_tokens": 8192, "lr": 5e-5, "weight_decay": 0.01, "schedule": "linear", "warmup": 0.1,
}  # fmt: skip
BLOCKS: Mapping[str, Any] = {
    "mixer": "attention", "positions": "rotary", "connection": "residual", "norm": "layer", "layers": 2, "dropout": 0.3,
}  # fmt: skip
# a masked language model's own encoder, without its head, so that weights fit
PRETRAINED: Mapping[str, Any] = {name: value for name, value in encoder_tables.BERT.items() if name != "transform"}
