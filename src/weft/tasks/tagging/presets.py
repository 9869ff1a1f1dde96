"""The taggers that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.encoder_tables import TaggerTable
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Preset
from weft.train.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.train.network import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.tagging.network import Tagging

    return Tagging()


def check(settings: Settings) -> None:
    """Refuse options that do not go together."""
    if settings.train.label_smoothing:
        raise ConfigError(
            f"train.label_smoothing={settings.train.label_smoothing:g}: tags are learned as they are given; drop it"
        )


NETWORK = NetworkEstimator(find_network, check)
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
