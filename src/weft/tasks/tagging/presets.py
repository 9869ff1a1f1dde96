"""The architectures of tagging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.config import MIN_RNNS
from weft.models.encoder_config import TaggerConfig
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.tagging.network import TaggingBuilder

    return TaggingBuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    if config.train.label_smoothing:
        raise ConfigError("train.label_smoothing", "not available for task 'tagging'", "remove it")


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "max_epochs": 20.0, "batch_tokens": 1024, "lr": 2e-3, "weight_decay": 0.01, "lr_schedule": "cosine", "warmup_ratio": 0.05,
    "ema_decay": 0.99,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, TaggerConfig, {"num_layers": 1, "dropout": 0.5, "char_encoder": {}, **values}, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "conv": _preset({"layer_type": "conv", "kernel_size": 3}),
    "rnn": _preset({"layer_type": "rnn"}),
    "lstm": _preset({"layer_type": "lstm"}),
    "gru": _preset({"layer_type": "gru"}),
    **{arch: _preset(values) for arch, values in MIN_RNNS.items()},
    "transformer": _preset(BLOCKS),
    "bert": Preset(NETWORK, TaggerConfig, {**PRETRAINED, "head": "linear", "char_encoder": False}, FINE_TUNED),
}
