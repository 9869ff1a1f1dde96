"""The question-answering models that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.encoder_tables import SpanTable
from weft.tasks.presets import BLOCKS, FINE_TUNED, MUON, PRETRAINED
from weft.tasks.spec import Preset
from weft.train.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.train.network import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.qa.network import Reading

    return Reading()


def check(settings: Settings) -> None:
    """Refuse options that do not go together."""
    if settings.train.label_smoothing:
        raise ConfigError(
            f"train.label_smoothing={settings.train.label_smoothing:g}: answers are learned as they are given; drop it"
        )


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "steps": 2000, "batch_tokens": 4096, "lr": 2e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "average": 0.99,
}  # fmt: skip
# no convolution among them: what it sees of a passage does not reach back to the question
PRESETS: Mapping[str, Preset] = {
    "rnn": Preset(NETWORK, SpanTable, {"mixer": "rnn", "dropout": 0.2}, TRAIN),
    "lstm": Preset(NETWORK, SpanTable, {"mixer": "lstm", "dropout": 0.2}, TRAIN),
    "gru": Preset(NETWORK, SpanTable, {"mixer": "gru", "dropout": 0.2}, TRAIN),
    "transformer": Preset(NETWORK, SpanTable, {**BLOCKS, "dropout": 0.1}, {**TRAIN, **MUON}),
    "bert": Preset(NETWORK, SpanTable, PRETRAINED, FINE_TUNED),
}
