"""Run files of question answering to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.tasks.template_parts import (
    AVERAGE,
    COMMANDS,
    FINE_TUNED,
    LEARNED,
    MUON,
    NONLINEARITY,
    PRETRAINED,
    READ,
    ROTARY,
    quoted,
    stack,
    train,
)

QA_DATA = (
    COMMANDS
    + """\
#   weft predict runs/run < asked.tsv     answers; a line is a question, a tab, and a passage

task = "qa"                      # answer a question by a part of a passage, or say that it has no answer
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.jsonl"              # .jsonl, .tsv, .csv, .xlsx, .parquet, SQuAD's .json; a path is seen from this file
valid = 0.1                        # files, or the share of train that is taken off its end: chooses the best weights
test = 0.1                         # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
                                   # delimiter = ";": between the columns of .csv and .tsv, or "tab"; the comma,
                                   # semicolon or tab of the first line, unless given
                                   # sheet = "Data": of .xlsx, a name or a place from 1; the first, unless given
# question_column = "question"            # the column, or the key, of the questions
# passage_column = "passage"              # that of the passages
# answer_column = "answer"                # that of the answers: a part of the passage, or nothing where it has none
# answer_start_column = "start"                  # that of the character where the answer starts; without it the first that reads so
# max_length = 384                    # tokens read at once, of a question and a window of its passage
# doc_stride = 128                     # tokens from one window of a long passage to the next: they overlap
# max_answer_length = 30              # tokens of an answer at most

[tokenizer]
# type = "word"                    # char, byte, bpe, unigram, wordpiece, word, space
# vocab_size = 8000                      # most tokens kept
# lowercase = false                # true: A and a are one
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
)
STACKED = """\
# two_way = true                   # reads from both ends
# dropout = {dropout:<23}# the smaller the data, the more, up to 0.5
                                   # embedding_dropout = 0.1: of the embeddings alone; as dropout, unless given
                                   # word_dropout = 0.1: share of tokens that training reads as <unk>
                                   # word_dropout = 0.1: the share of tokens that training reads as unknown
{read}# embedding_norm = {embedding_norm:<16}# embeddings are normalised before the first layer, as in BERT
# connection = {connection:<20}# between layers: plain, residual, post-norm, highway, dense
# norm = {norm:<26}# none, layer, rms
"""
SCORED = """\
                                   # monitor = "exact_match": keep what scores best so; unless given, by f1
"""
_RECIPE = {
    "budget": "steps = 2000", "batch_tokens": "4096", "optimizer": "adamw", "lr": "2e-3", "muon": "", "adam_beta2": "0.99",
    "weight_decay": "0.01", "smoothing": AVERAGE, "schedule": "cosine", "warmup": "0.05", "monitor": SCORED,
}  # fmt: skip
_MUON = {
    **_RECIPE,
    "optimizer": "muon",
    "lr": "4e-3",
    "adam_beta2": "0.95",
    "weight_decay": "0.1",
    "schedule": "linear",
    "warmup": "0.0",
    "muon": MUON,
}


class Reading(NamedTuple):
    """How the file of a kind of reader differs from the others'."""

    about: str
    layers: int = 2
    dropout: float = 0.2
    parts: str = ""
    read: str = READ
    connection: str = "none"
    norm: str = "none"
    embedding_norm: str = "false"
    recipe: Mapping[str, str] = _RECIPE

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("skip_connection", "norm")}
        model = self.parts + STACKED.format(**values)
        return QA_DATA + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


TEMPLATES: Mapping[str, Reading] = {
    "transformer": Reading("attention between the two texts", 2, 0.1, ROTARY, "", "residual", "layer", recipe=_MUON),
    "bert": Reading(PRETRAINED, 4, 0.1, LEARNED, "", "post-norm", "layer", "true", {**FINE_TUNED, "monitor": SCORED}),
    "lstm": Reading("long short-term memory"),
    "gru": Reading("gated recurrent units"),
    "rnn": Reading("the plain recurrent network", parts=NONLINEARITY),
}
