"""What each kind means for each task: which table reads its options, what differs from the defaults, who trains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from weft.models.ngram import NgramTable
from weft.models.tables import GPT, TEXTBOOK, LanguageTable
from weft.train.counting import Counting
from weft.train.network import Network

if TYPE_CHECKING:
    from weft.text.tokenizers import Tokenizer
    from weft.train.folder import RunFolder
    from weft.train.job import Job
    from weft.train.settings import Settings


class Family(Protocol):
    """How models of one making are checked, trained and read back."""

    def check(self, settings: Settings) -> None:
        """Refuses tables that are right each for itself but not together."""

    def train(self, job: Job) -> None:
        """Leaves the run folder with the model's best weights."""

    def load(self, settings: Settings, tokenizer: Tokenizer, folder: RunFolder, device: torch.device) -> Any:
        """The model of a run folder: Steps, and `loss` for whole texts."""


class Preset(NamedTuple):
    family: Family
    table: type[Any]
    values: Mapping[str, Any]
    train: Mapping[str, Any] = {}


RECURRENT: Mapping[str, Any] = {"lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "batch_tokens": 4096}
MUON: Mapping[str, Any] = {
    "optimizer": "muon",
    "lr": 4e-3,
    "beta2": 0.95,
    "schedule": "linear",
    "weight_decay": 0.1,
    "warmup": 0.0,
}

LM: Mapping[str, Preset] = {
    "ngram": Preset(Counting(), NgramTable, {}),
    "window": Preset(Network(), LanguageTable, {"mixer": "window", "layers": 1, "context": 3}),
    "rnn": Preset(Network(), LanguageTable, {"mixer": "rnn"}, RECURRENT),
    "lstm": Preset(Network(), LanguageTable, {"mixer": "lstm"}, RECURRENT),
    "gru": Preset(Network(), LanguageTable, {"mixer": "gru"}, RECURRENT),
    "transformer": Preset(Network(), LanguageTable, TEXTBOOK),
    "gpt": Preset(Network(), LanguageTable, GPT, MUON),
}
TASKS: Mapping[str, Mapping[str, Preset]] = {"lm": LM}
