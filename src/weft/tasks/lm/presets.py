"""The language models that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.ngram import NgramTable
from weft.models.tables import GPT, TEXTBOOK, LanguageTable
from weft.tasks.lm.ngram import Counting
from weft.tasks.presets import MUON, RECURRENT
from weft.tasks.spec import Choice, Preset
from weft.train.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.train.network import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.lm.network import Language

    return Language()


def check(settings: Settings) -> None:
    """Refuse options that do not go together."""
    if settings.data.read == "stream" and settings.model.positions == "learned":
        raise ConfigError("model.positions: 'learned' has a last position, but data.read='stream' runs on; use 'rotary'")


NETWORK = NetworkEstimator(find_network, check)
NGRAMS = (
    Choice("order", (2, 3, 4, 5, 6, 7, 8)),
    Choice("smoothing", ("kneser-ney", "back-off", "add-delta")),
    Choice("delta", (0.001, 0.01, 0.1, 0.5), ("smoothing", "add-delta")),
)
PRESETS: Mapping[str, Preset] = {
    "ngram": Preset(Counting(), NgramTable, choices=NGRAMS, unit="n-grams"),
    "window": Preset(NETWORK, LanguageTable, {"mixer": "window", "layers": 1, "context": 3}),
    "rnn": Preset(NETWORK, LanguageTable, {"mixer": "rnn"}, RECURRENT),
    "lstm": Preset(NETWORK, LanguageTable, {"mixer": "lstm"}, RECURRENT),
    "gru": Preset(NETWORK, LanguageTable, {"mixer": "gru"}, RECURRENT),
    "transformer": Preset(NETWORK, LanguageTable, TEXTBOOK),
    "gpt": Preset(NETWORK, LanguageTable, GPT, MUON),
}
