"""The architectures of instruction tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.tasks.responses.model import presets
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.instruction_tuning.network import InstructionBuilder

    return InstructionBuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    model = config.model
    if config.data.packing and (not model.traits.attends or model.conv_kernel is not None):
        raise ConfigError("data.packing", "requires attention layers without convolutions", "set it to false")
    if model.lora_rank and config.train.init_from is None:
        raise ConfigError("model.lora_rank", "requires weights to adapt", "set train.init_from or lora_rank = 0")


TRAIN: Mapping[str, Any] = {
    "max_epochs": 3.0, "batch_tokens": 8192, "lr": 3e-4, "weight_decay": 0.01, "lr_schedule": "cosine", "warmup_ratio": 0.05,
}  # fmt: skip
PRESETS: Mapping[str, Preset] = presets(NetworkEstimator(find_network, check), TRAIN)
