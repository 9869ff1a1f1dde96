"""The architectures of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.config import GPT, MIN_RNNS, TRANSFORMER
from weft.tasks.policy_gradient.config import PolicyConfig
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.policy_gradient.network import PolicyBuilder

    return PolicyBuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    if config.data.max_length <= config.model.max_new_tokens:
        problem = f"{config.data.max_length} leaves no room for prompts beside model.max_new_tokens"
        raise ConfigError("data.max_length", f"{problem} ({config.model.max_new_tokens})", "increase it")


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "max_steps": 200, "batch_tokens": 8192, "lr": 1e-4, "weight_decay": 0.0, "lr_schedule": "constant", "warmup_ratio": 0.05,
    "num_validations": 20,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, PolicyConfig, values, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "gpt": _preset(GPT),
    "transformer": _preset(TRANSFORMER),
    "lstm": _preset({"layer_type": "lstm"}),
    "gru": _preset({"layer_type": "gru"}),
    **{arch: _preset(values) for arch, values in MIN_RNNS.items()},
    "rnn": _preset({"layer_type": "rnn"}),
}
