"""The masked language models that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models import encoder_config as encoder_tables
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
    """Refuse options that do not go together."""
    if config.data.read_as == "stream":
        raise ConfigError(
            "data.read_as",
            "'stream' goes on from text to text, but a masked language model reads each one whole",
            "use 'lines' or 'windows'",
        )
    if config.data.read_as == "windows" and config.data.context_length < 3:
        raise ConfigError(
            "data.context_length", f"{config.data.context_length} has no room for a token between <s> and </s>", "at least 3"
        )
    if config.model.sentence_pairs and config.data.read_as != "lines":
        raise ConfigError(
            "model.sentence_pairs",
            f"true reads two lines as one text, but data.read_as = {config.data.read_as!r} knows no lines",
            "use read = 'lines'",
        )


NETWORK = NetworkEstimator(find_network, check)
BERT: Mapping[str, Any] = {"lr": 5e-4, "weight_decay": 0.01, "lr_schedule": "linear", "warmup_ratio": 0.1}
PRESETS: Mapping[str, Preset] = {
    "lstm": Preset(NETWORK, MaskedLMConfig, {"layer_type": "lstm"}, RECURRENT),
    "transformer": Preset(NETWORK, MaskedLMConfig, encoder_tables.TRANSFORMER, MUON),
    "bert": Preset(NETWORK, MaskedLMConfig, encoder_tables.BERT, BERT),
}
