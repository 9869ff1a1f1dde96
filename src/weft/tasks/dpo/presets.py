"""The architectures of direct preference optimization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.models.config import GPT, MIN_RNNS, TRANSFORMER
from weft.tasks.dpo.config import DPOConfig
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.dpo.network import DPOBuilder

    return DPOBuilder()


NETWORK = NetworkEstimator(find_network)
TRAIN: Mapping[str, Any] = {
    "max_epochs": 1.0, "batch_tokens": 8192, "lr": 1e-4, "weight_decay": 0.0, "lr_schedule": "linear", "warmup_ratio": 0.1,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, DPOConfig, values, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "gpt": _preset(GPT),
    "transformer": _preset(TRANSFORMER),
    "lstm": _preset({"layer_type": "lstm"}),
    "gru": _preset({"layer_type": "gru"}),
    **{arch: _preset(values) for arch, values in MIN_RNNS.items()},
    "rnn": _preset({"layer_type": "rnn"}),
}
