"""The architectures of question answering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.config import MIN_RNNS
from weft.models.encoder_config import QAConfig
from weft.tasks.presets import BLOCKS, FINE_TUNED, MUON, PRETRAINED
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.qa.network import QABuilder

    return QABuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    if config.train.label_smoothing:
        raise ConfigError("train.label_smoothing", "not available for task 'qa'", "remove it")


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "max_steps": 2000, "batch_tokens": 4096, "lr": 2e-3, "weight_decay": 0.01, "lr_schedule": "cosine", "warmup_ratio": 0.05,
    "ema_decay": 0.99,
}  # fmt: skip
# no convolution: it cannot see the question from the passage
PRESETS: Mapping[str, Preset] = {
    "rnn": Preset(NETWORK, QAConfig, {"layer_type": "rnn", "dropout": 0.2}, TRAIN),
    "lstm": Preset(NETWORK, QAConfig, {"layer_type": "lstm", "dropout": 0.2}, TRAIN),
    "gru": Preset(NETWORK, QAConfig, {"layer_type": "gru", "dropout": 0.2}, TRAIN),
    **{arch: Preset(NETWORK, QAConfig, {**values, "dropout": 0.2}, TRAIN) for arch, values in MIN_RNNS.items()},
    "transformer": Preset(NETWORK, QAConfig, {**BLOCKS, "dropout": 0.1}, {**TRAIN, **MUON}),
    "bert": Preset(NETWORK, QAConfig, PRETRAINED, FINE_TUNED),
}
