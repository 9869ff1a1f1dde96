"""The taggers that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.tagger import TaggerTable
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Preset
from weft.tasks.tagging.network import Tagging
from weft.train.network import Network

NETWORK = Network(Tagging())
TRAIN: Mapping[str, Any] = {
    "epochs": 20.0, "batch_tokens": 1024, "lr": 2e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "average": 0.99,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, TaggerTable, {"layers": 1, "dropout": 0.5, "spelling": {}, **values}, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "window": _preset({"mixer": "window", "context": 3}),
    "rnn": _preset({"mixer": "rnn"}),
    "lstm": _preset({"mixer": "lstm"}),
    "gru": _preset({"mixer": "gru"}),
    "transformer": _preset(BLOCKS),
    "bert": Preset(NETWORK, TaggerTable, {**PRETRAINED, "head": "linear", "spelling": "none"}, FINE_TUNED),
}
