"""What each kind means for each task: which table reads its options, what differs from the defaults, who trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from weft.models import pair_tables
from weft.models.ngram import NgramTable
from weft.models.pair_tables import Seq2SeqTable
from weft.models.tables import GPT, TEXTBOOK, LanguageTable
from weft.train.counting import Counting
from weft.train.language import Language
from weft.train.material import Material, PairsOfTexts, Texts
from weft.train.network import Network
from weft.train.translation import Translation

if TYPE_CHECKING:
    from weft.train.folder import RunFolder
    from weft.train.job import Job
    from weft.train.settings import Settings


class Family(Protocol):
    """How models of one making are checked, trained and read back."""

    def check(self, settings: Settings) -> None:
        """Refuses tables that are right each for itself but not together."""

    def train(self, job: Job) -> None:
        """Leaves the run folder with the model's best weights."""

    def load(self, settings: Settings, tokenizer: Any, folder: RunFolder, device: torch.device) -> Any:
        """The model of a run folder: Steps, and `loss` for whole texts."""


class Preset(NamedTuple):
    family: Family
    table: type[Any]
    values: Mapping[str, Any]
    train: Mapping[str, Any] = {}
    merge: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda values, options: {**values, **options}

    def merged(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The preset's values under those of a run file."""
        return self.merge(self.values, options)


class Shared(NamedTuple):
    """What the kinds of one task have in common."""

    material: Material
    presets: Mapping[str, Preset]


RECURRENT: Mapping[str, Any] = {"lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "batch_tokens": 4096}
MUON: Mapping[str, Any] = {
    "optimizer": "muon",
    "lr": 4e-3,
    "beta2": 0.95,
    "schedule": "linear",
    "weight_decay": 0.1,
    "warmup": 0.0,
}
PAIRS: Mapping[str, Any] = {
    "steps": 3500, "batch_tokens": 2048, "lr": 1e-3, "beta2": 0.98, "weight_decay": 0.0, "warmup": 0.08,
    "label_smoothing": 0.1, "average": 0.99,
}  # fmt: skip
language, translation = Network(Language()), Network(Translation())

LM: Mapping[str, Preset] = {
    "ngram": Preset(Counting(), NgramTable, {}),
    "window": Preset(language, LanguageTable, {"mixer": "window", "layers": 1, "context": 3}),
    "rnn": Preset(language, LanguageTable, {"mixer": "rnn"}, RECURRENT),
    "lstm": Preset(language, LanguageTable, {"mixer": "lstm"}, RECURRENT),
    "gru": Preset(language, LanguageTable, {"mixer": "gru"}, RECURRENT),
    "transformer": Preset(language, LanguageTable, TEXTBOOK),
    "gpt": Preset(language, LanguageTable, GPT, MUON),
}


def _pairs(values: Mapping[str, Any]) -> Preset:
    return Preset(translation, Seq2SeqTable, values, PAIRS, pair_tables.merge)


TRANSLATE: Mapping[str, Preset] = {
    "sutskever": _pairs(pair_tables.SUTSKEVER),
    "cho": _pairs(pair_tables.CHO),
    "bahdanau": _pairs(pair_tables.BAHDANAU),
    "luong": _pairs(pair_tables.LUONG),
    "rnn": _pairs({**pair_tables.RECURRENT, "mixer": "rnn"}),
    "lstm": _pairs({**pair_tables.RECURRENT, "mixer": "lstm"}),
    "gru": _pairs({**pair_tables.RECURRENT, "mixer": "gru"}),
    "transformer": _pairs(pair_tables.TRANSFORMER),
    "seq2seq": _pairs(pair_tables.SEQ2SEQ),
}
TASKS: Mapping[str, Shared] = {"lm": Shared(Texts(), LM), "translate": Shared(PairsOfTexts(), TRANSLATE)}
