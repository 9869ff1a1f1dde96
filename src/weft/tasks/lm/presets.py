"""The language models that run files name."""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.ngram import NgramTable
from weft.models.tables import GPT, TEXTBOOK, LanguageTable
from weft.tasks.lm.network import Language
from weft.tasks.lm.ngram import Counting
from weft.tasks.presets import MUON, RECURRENT
from weft.tasks.spec import Preset
from weft.train.network import Network

NETWORK = Network(Language())
PRESETS: Mapping[str, Preset] = {
    "ngram": Preset(Counting(), NgramTable),
    "window": Preset(NETWORK, LanguageTable, {"mixer": "window", "layers": 1, "context": 3}),
    "rnn": Preset(NETWORK, LanguageTable, {"mixer": "rnn"}, RECURRENT),
    "lstm": Preset(NETWORK, LanguageTable, {"mixer": "lstm"}, RECURRENT),
    "gru": Preset(NETWORK, LanguageTable, {"mixer": "gru"}, RECURRENT),
    "transformer": Preset(NETWORK, LanguageTable, TEXTBOOK),
    "gpt": Preset(NETWORK, LanguageTable, GPT, MUON),
}
