"""Run files of language models to start from. Options behind a `#` are the defaults; a test holds all of it to the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.tasks.template_parts import (
    ATTENTION,
    MUON,
    NONLINEARITY,
    quoted,
    stack,
    train,
)

TEXT = """\
#   weft train run.toml                   train it (Ctrl-C stops and saves; the same command resumes)
#   weft evaluate runs/run                scores on the test data
#   weft generate runs/run "A prompt"     see what it writes

task = "lm"                        # a language model: predict the next token
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.txt"                # a text file, or several: ["a.txt", "b.txt.gz"]; a path is seen from this file
valid = 0.05                       # a file, or the share of train that is taken off its end: chooses the best weights
test = 0.05                        # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
# read_as = "windows"                 # "windows": running text in shuffled windows
                                   # "stream": running text in order, the state carried on (for recurrent models)
                                   # "lines": each line stands for itself (names, sentences)
# context_length = 256                     # tokens in a window: how far back training can see
# stride = 256                     # from one window to the next (windows only); smaller: windows overlap

[tokenizer]
# type = "char"                    # char, byte, bpe, unigram, wordpiece, word, space
# vocab_size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
NGRAM = """
[model]
arch = "ngram"                     # by counting; others: window, rnn, lstm, gru, transformer, gpt
# order = 5                        # tokens in an n-gram: a token is predicted from the order - 1 before it
# smoothing = "kneser-ney"         # kneser-ney (modified, interpolated), back-off, add-delta, ml
# prune = []                       # [0, 0, 1]: drop n-grams of three and more tokens that occur once
# closed_vocab = false                   # true: tokens that training never saw can't be predicted at all
"""
SIZES = """\
# dropout = 0.0                    # 0.1 to 0.3 helps when the text is small and training long
# embedding_dropout = 0.0          # of the embeddings alone; as dropout, unless given
# tied = false                     # true: one matrix for reading and for predicting tokens
# connection = {connection:<20}# between layers: plain, residual, post-norm, highway, dense
# norm = {norm:<26}# none, layer, rms
"""
CONTEXT = """\
# context = 3                      # tokens that a prediction sees
"""
SAMPLES = """\
# samples = 0                      # texts that are written at each validation, for samples.jsonl and the report
# sample_prompts = []              # what they continue: ["The ", "A "]; their start, unless given
# sample_length = 100              # tokens of each, at most
"""


class Language(NamedTuple):
    """How the file of a kind of language model differs from the others'."""

    about: str
    num_layers: int = 2
    skip_connection: str = "none"
    norm: str = "none"
    parts: str = ""
    recurrent: bool = True
    muon: bool = False

    def text(self, name: str) -> str:
        sizes = SIZES.format(connection=quoted(self.skip_connection), norm=quoted(self.norm))
        return TEXT + stack(name, self.about, self.num_layers, 256) + self.parts + sizes + train(self._recipe())

    def _recipe(self) -> dict[str, str]:
        values = {"optimizer": "adamw", "lr_schedule": "cosine", "lr": "1e-3", "weight_decay": "0.1", "warmup_ratio": "0.02"}
        values |= {
            "adam_beta2": "0.99",
            "muon": "",
            "budget": "steps = 2000",
            "batch_tokens": "4096",
            "smoothing": "",
            "monitor": "",
            "samples": SAMPLES,
        }
        if self.recurrent:
            values |= {"lr": "3e-3", "weight_decay": "0.01"}
        if self.muon:
            values |= {"optimizer": "muon", "lr_schedule": "linear", "lr": "4e-3", "weight_decay": "0.1", "warmup_ratio": "0.0"}
            values |= {"adam_beta2": "0.95", "muon": MUON}
        return values


class NgramTemplate(NamedTuple):
    """An n-gram model has no layers and needs no training options."""

    def text(self, name: str) -> str:
        return TEXT + NGRAM


_TEXTBOOK = ATTENTION.format(positions='"learned"', activation='"gelu"', qk_norm="false")
_BEST = ATTENTION.format(positions='"rotary"', activation='"squared-relu"', qk_norm="true")

TEMPLATES: Mapping[str, Language | NgramTemplate] = {
    "gpt": Language("the best recipe known", 4, "residual", "rms", _BEST, recurrent=False, muon=True),
    "transformer": Language(
        "a Transformer as GPT-2 is: learned positions, pre-norm, GELU", 4, "residual", "layer", _TEXTBOOK, recurrent=False
    ),
    "lstm": Language("long short-term memory"),
    "gru": Language("gated recurrent units"),
    "rnn": Language("the plain recurrent network", parts=NONLINEARITY),
    "conv": Language("a network over the last few tokens", 1, parts=CONTEXT + NONLINEARITY, recurrent=False),
    "ngram": NgramTemplate(),
}
