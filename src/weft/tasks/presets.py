"""Options that the presets of several tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models import encoder_config

RECURRENT: Mapping[str, Any] = {"lr": 3e-3, "weight_decay": 0.01, "lr_schedule": "cosine", "batch_tokens": 4096}
MUON: Mapping[str, Any] = {
    "optimizer": "muon",
    "lr": 4e-3,
    "adam_beta2": 0.95,
    "lr_schedule": "linear",
    "weight_decay": 0.1,
    "warmup_ratio": 0.0,
}
FINE_TUNED: Mapping[str, Any] = {
    "max_epochs": 3.0, "batch_tokens": 8192, "lr": 5e-5, "weight_decay": 0.01, "lr_schedule": "linear", "warmup_ratio": 0.1,
}  # fmt: skip
BLOCKS: Mapping[str, Any] = {
    "layer_type": "attention", "position_encoding": "rotary", "skip_connection": "residual", "norm": "layernorm",
    "num_layers": 2, "dropout": 0.3,
}  # fmt: skip
# the encoder of a masked language model, without its head: weights can be initialized from one
PRETRAINED: Mapping[str, Any] = {name: value for name, value in encoder_config.BERT.items() if name != "head_transform"}
