"""Run files of masked language models to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.tasks.template_parts import (
    ATTENTION,
    COMMANDS,
    LEARNED,
    MUON,
    RECIPE,
    quoted,
    stack,
    train,
)

HIDDEN = (
    COMMANDS
    + """\
#   weft fill runs/run "A [MASK] text"    what may stand in a gap
#   weft train other.toml --init-from runs/run    start a classifier or a tagger from its encoder

task = "masked-lm"                 # predict tokens that are hidden, from both sides
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.txt"                # a text file, or several: ["a.txt", "b.txt.gz"]; a path is seen from this file
valid = 0.05                       # a file, or the share of train that is taken off its end: chooses the best weights
test = 0.05                        # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
# read_as = "windows"                 # "windows": running text in shuffled windows; "lines": each line stands for itself
# context_length = 256                     # tokens in a window
# stride = 256                     # from one window to the next (windows only); smaller: windows overlap

[tokenizer]
# type = "char"                    # char, byte, bpe, unigram, wordpiece (as in BERT), word, space
# vocab_size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
)
MASKED_DATA = """\
# dropout = {dropout:<23}# 0.1 to 0.3 helps when the text is small and training long
                                   # embedding_dropout = 0.1: of the embeddings alone; as dropout, unless given
                                   # word_dropout = 0.1: share of tokens that training reads as <unk>
# embedding_norm = {embedding_norm:<16}# embeddings are normalised before the first layer
# tied = true                      # one matrix for reading tokens and for predicting them
# transform = {transform:<21}# a layer of its own before the output
# pairs = false                    # true: a line and the next are one text, for a classifier of pairs to start from
                                   # (read = "lines" only); segments = true: a vector for each of two texts; as pairs,
                                   # unless given
# share = 0.15                     # of the tokens that are to be predicted
# masking = "token"                # what is hidden together: token (nothing), word (its pieces), span (words in a row)
# connection = {connection:<20}# between layers: plain, residual, post-norm, highway, dense
# norm = {norm:<26}# none, layer, rms
"""
_PLAIN = {"budget": "steps = 2000", "batch_tokens": "4096", "smoothing": "", "monitor": "", **RECIPE}
_RECURRENT = {**_PLAIN, "lr": "3e-3", "warmup_ratio": "0.02"}
_BERT = {**_PLAIN, "lr": "5e-4", "lr_schedule": "linear", "warmup_ratio": "0.1"}
_MUON = {**_BERT, "optimizer": "muon", "lr": "4e-3", "adam_beta2": "0.95", "weight_decay": "0.1", "warmup": "0.0", "muon": MUON}


class Filling(NamedTuple):
    """How the file of a kind of masked language model differs from the others'."""

    about: str
    recipe: Mapping[str, str]
    layers: int = 4
    dropout: float = 0.1
    parts: str = ""
    connection: str = "none"
    norm: str = "none"
    embedding_norm: str = "false"
    transform: str = "false"

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("skip_connection", "norm")}
        model = self.parts + MASKED_DATA.format(**values)
        return HIDDEN + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


_NORMED = ATTENTION.format(positions='"rotary"', activation='"gelu"', qk_norm="true")

TEMPLATES: Mapping[str, Filling] = {
    "transformer": Filling("the better recipe", _MUON, parts=_NORMED, connection="residual", norm="rmsnorm"),
    "bert": Filling(
        "Devlin et al. 2019",
        _BERT,
        parts=LEARNED,
        connection="post-norm",
        norm="layernorm",
        embedding_norm="true",
        transform="true",
    ),
    "lstm": Filling("long short-term memory, both ways", _RECURRENT, 2, 0.0),
}
