"""The masked language models that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models import encoder_tables
from weft.models.encoder_tables import MaskedTable
from weft.tasks.presets import MUON, RECURRENT
from weft.tasks.spec import Preset
from weft.train.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.train.network import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.masked_lm.network import MaskedLanguage

    return MaskedLanguage()


def check(settings: Settings) -> None:
    """Refuse options that do not go together."""
    if settings.data.read == "stream":
        raise ConfigError(
            "data.read: 'stream' goes on from text to text, but a masked language model reads each one whole; "
            "use 'lines' or 'windows'"
        )
    if settings.data.read == "windows" and settings.data.window < 3:
        raise ConfigError(f"data.window: {settings.data.window} has no room for a token between <s> and </s>; at least 3")
    if settings.model.pairs and settings.data.read != "lines":
        raise ConfigError(
            f"model.pairs: true reads two lines as one text, but data.read = {settings.data.read!r} knows no lines; "
            "use read = 'lines'"
        )


NETWORK = NetworkEstimator(find_network, check)
BERT: Mapping[str, Any] = {"lr": 5e-4, "weight_decay": 0.01, "schedule": "linear", "warmup": 0.1}
PRESETS: Mapping[str, Preset] = {
    "lstm": Preset(NETWORK, MaskedTable, {"mixer": "lstm"}, RECURRENT),
    "transformer": Preset(NETWORK, MaskedTable, encoder_tables.TRANSFORMER, MUON),
    "bert": Preset(NETWORK, MaskedTable, encoder_tables.BERT, BERT),
}
