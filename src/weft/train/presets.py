"""What each kind means for each task: which table reads its options, what differs from the defaults, who trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from weft.models import masked, pair_tables
from weft.models.baseline_tables import BayesTable, RegressionTable
from weft.models.classifier import ClassifierTable
from weft.models.masked import MaskedTable
from weft.models.ngram import NgramTable
from weft.models.pair_tables import Seq2SeqTable
from weft.models.span import SpanTable
from weft.models.tables import GPT, TEXTBOOK, LanguageTable
from weft.models.tagger import TaggerTable
from weft.tasks.classification.baselines import Baseline, fit_bayes, fit_regression
from weft.tasks.classification.network import Classification
from weft.tasks.lm.network import Language
from weft.tasks.lm.ngram import Counting
from weft.tasks.masked_lm.network import MaskedLanguage
from weft.tasks.qa.network import Reading
from weft.tasks.seq2seq.network import Translation
from weft.tasks.tagging.network import Tagging
from weft.train.material import AskedTexts, LabelledTexts, Material, PairsOfTexts, TaggedTexts, Texts
from weft.train.network import Network

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
classification, tagging = Network(Classification()), Network(Tagging())

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
READ: Mapping[str, Any] = {
    "steps": 1000, "batch_tokens": 2048, "lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "label_smoothing": 0.1, "average": 0.99,
}  # fmt: skip
TAGGED: Mapping[str, Any] = {
    "epochs": 20.0, "batch_tokens": 1024, "lr": 2e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "average": 0.99,
}  # fmt: skip
BLOCKS: Mapping[str, Any] = {
    "mixer": "attention", "positions": "rotary", "connection": "residual", "norm": "layer", "layers": 2, "dropout": 0.3,
}  # fmt: skip
RECURRENT_TEXT: Mapping[str, Any] = {"layers": 1, "dropout": 0.5, "pool": "max"}


FINE_TUNED: Mapping[str, Any] = {
    "epochs": 3.0, "batch_tokens": 8192, "lr": 5e-5, "weight_decay": 0.01, "schedule": "linear", "warmup": 0.1,
}  # fmt: skip
# a masked language model's own encoder, without what stands above it there: so that weights fit
PRETRAINED: Mapping[str, Any] = {name: value for name, value in masked.BERT.items() if name != "transform"}


def _classifies(values: Mapping[str, Any]) -> Preset:
    return Preset(classification, ClassifierTable, values, READ)


def _tags(values: Mapping[str, Any]) -> Preset:
    spelled = {"layers": 1, "dropout": 0.5, "spelling": {}, **values}
    return Preset(tagging, TaggerTable, spelled, TAGGED)


CLASSIFY: Mapping[str, Preset] = {
    "naive-bayes": Preset(Baseline(fit_bayes), BayesTable, {}),
    "regression": Preset(Baseline(fit_regression), RegressionTable, {}),
    "window": _classifies({**RECURRENT_TEXT, "mixer": "window", "context": 3}),
    "rnn": _classifies({**RECURRENT_TEXT, "mixer": "rnn"}),
    "lstm": _classifies({**RECURRENT_TEXT, "mixer": "lstm"}),
    "gru": _classifies({**RECURRENT_TEXT, "mixer": "gru"}),
    "transformer": _classifies({**BLOCKS, "pool": "mean"}),
    "bert": Preset(classification, ClassifierTable, {**PRETRAINED, "pool": "first"}, FINE_TUNED),
}
TAG: Mapping[str, Preset] = {
    "window": _tags({"mixer": "window", "context": 3}),
    "rnn": _tags({"mixer": "rnn"}),
    "lstm": _tags({"mixer": "lstm"}),
    "gru": _tags({"mixer": "gru"}),
    "transformer": _tags(BLOCKS),
    "bert": Preset(tagging, TaggerTable, {**PRETRAINED, "head": "linear", "spelling": "none"}, FINE_TUNED),
}
BERT: Mapping[str, Any] = {"lr": 5e-4, "weight_decay": 0.01, "schedule": "linear", "warmup": 0.1}
masked_language = Network(MaskedLanguage())
MASKED: Mapping[str, Preset] = {
    "lstm": Preset(masked_language, MaskedTable, {"mixer": "lstm"}, RECURRENT),
    "transformer": Preset(masked_language, MaskedTable, masked.TRANSFORMER, MUON),
    "bert": Preset(masked_language, MaskedTable, masked.BERT, BERT),
}
ASKED: Mapping[str, Any] = {
    "steps": 2000, "batch_tokens": 4096, "lr": 2e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "average": 0.99,
}  # fmt: skip
reading = Network(Reading())
# no window among them: nothing that it sees of a passage knows the question
SPAN: Mapping[str, Preset] = {
    "rnn": Preset(reading, SpanTable, {"mixer": "rnn", "dropout": 0.2}, ASKED),
    "lstm": Preset(reading, SpanTable, {"mixer": "lstm", "dropout": 0.2}, ASKED),
    "gru": Preset(reading, SpanTable, {"mixer": "gru", "dropout": 0.2}, ASKED),
    "transformer": Preset(reading, SpanTable, {**BLOCKS, "dropout": 0.1}, {**ASKED, **MUON}),
    "bert": Preset(reading, SpanTable, PRETRAINED, FINE_TUNED),
}
TASKS: Mapping[str, Shared] = {
    "lm": Shared(Texts(), LM),
    "translate": Shared(PairsOfTexts(), TRANSLATE),
    "classify": Shared(LabelledTexts(), CLASSIFY),
    "tag": Shared(TaggedTexts(), TAG),
    "masked-lm": Shared(Texts(), MASKED),
    "span": Shared(AskedTexts(), SPAN),
}
