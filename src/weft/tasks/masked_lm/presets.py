"""The architectures of masked language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models import encoder_config
from weft.models.encoder_config import MaskedLMConfig
from weft.tasks.presets import MUON, RECURRENT
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.masked_lm.network import MaskedLMBuilder

    return MaskedLMBuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    if config.data.read_as == "stream":
        raise ConfigError("data.read_as", "'stream' is not possible for a masked language model", "use 'lines' or 'windows'")
    if config.data.read_as == "windows" and config.data.context_length < 3:
        # one token between <s> and </s>
        problem = f"must be at least 3 for a masked language model, got {config.data.context_length}"
        raise ConfigError("data.context_length", problem)
    if config.model.sentence_pairs and config.data.read_as != "lines":
        raise ConfigError("model.sentence_pairs", 'requires data.read_as = "lines"')


NETWORK = NetworkEstimator(find_network, check)
BERT: Mapping[str, Any] = {"lr": 5e-4, "weight_decay": 0.01, "lr_schedule": "linear", "warmup_ratio": 0.1}
PRESETS: Mapping[str, Preset] = {
    "lstm": Preset(NETWORK, MaskedLMConfig, {"layer_type": "lstm"}, RECURRENT),
    "transformer": Preset(NETWORK, MaskedLMConfig, encoder_config.TRANSFORMER, MUON),
    "bert": Preset(NETWORK, MaskedLMConfig, encoder_config.BERT, BERT),
}
