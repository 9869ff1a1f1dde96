"""The masked language models that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models import masked
from weft.models.masked import MaskedTable
from weft.tasks.masked_lm.network import MaskedLanguage
from weft.tasks.presets import MUON, RECURRENT
from weft.tasks.spec import Preset
from weft.train.network import Network

NETWORK = Network(MaskedLanguage())
BERT: Mapping[str, Any] = {"lr": 5e-4, "weight_decay": 0.01, "schedule": "linear", "warmup": 0.1}
PRESETS: Mapping[str, Preset] = {
    "lstm": Preset(NETWORK, MaskedTable, {"mixer": "lstm"}, RECURRENT),
    "transformer": Preset(NETWORK, MaskedTable, masked.TRANSFORMER, MUON),
    "bert": Preset(NETWORK, MaskedTable, masked.BERT, BERT),
}
