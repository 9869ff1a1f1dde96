"""Run files to start from. The options that stand behind a `#` are the defaults; a test holds all of it to the tables.

The texts are written here, and not made from the tables, because those live beside models, and so behind torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HEAD = """\
# A weft run file: everything about one run that has an influence on its numbers.
# Options behind a # show their default: take the # away to change one. All but task, data.train and model.kind may go.
#
#   weft train {name}.toml                train it (Ctrl-C stops and saves; the same command resumes)
#   weft evaluate runs/{name}             scores on the test data
#   weft generate runs/{name} "A prompt"  see what it writes

task = "lm"                        # a language model: predict the next token
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.txt"                # a text file, or several: ["a.txt", "b.txt.gz"]; a path is seen from this file
valid = 0.05                       # a file, or the share of train that is taken off its end: chooses the best weights
test = 0.05                        # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
# read = "windows"                 # "windows": running text in shuffled windows
                                   # "stream": running text in order, the state carried on (for recurrent models)
                                   # "lines": each line stands for itself (names, sentences)
# window = 256                     # tokens in a window: how far back training can see
# stride = 256                     # from one window to the next (windows only); smaller: windows overlap

[tokenizer]
# kind = "char"                    # char, byte, bpe, unigram, wordpiece, word, space
# size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""

NGRAM = """
[model]
kind = "ngram"                     # by counting; others: window, rnn, lstm, gru, transformer, gpt
# order = 5                        # tokens in an n-gram: a token is predicted from the order - 1 before it
# smoothing = "kneser-ney"         # kneser-ney (modified, interpolated), back-off, add-delta, ml
# prune = []                       # [0, 0, 1]: drop n-grams of three and more tokens that occur once
# closed = false                   # true: tokens that training never saw can't be predicted at all
"""

STACK = """
[model]
kind = "{kind}"{pad}# {about}
# layers = {layers:<24}# one upon the other
# width = {width:<25}# numbers in the state of each position
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
ATTENTION = """\
# heads = 8                        # one for every 32 of the width, unless given; or one number a layer
# positions = {positions:<21}# none, sinusoidal, learned, relative, alibi, rotary
# feed_forward = 1024              # hidden units after each attention: 4 times the width, unless given
# activation = {activation:<20}# gelu, relu, squared-relu, gated
# qk_norm = {qk_norm:<23}# queries and keys are normalised: steadier at high rates
"""

TRAIN = """
[train]
steps = 2000                       # the budget; or one of tokens = ..., epochs = ..., minutes = ...
# batch_tokens = 4096              # tokens in each step
# accumulate = 1                   # compute a batch in so many parts: saves memory, changes nothing
# optimizer = {optimizer:<21}# adamw, muon (for the matrices; adamw beside it), sgd
# lr = {lr:<28}# the highest learning rate
{muon}# beta2 = {beta2:<25}# how long adamw remembers the size of gradients
# weight_decay = {weight_decay:<18}# pull of the weights towards 0
# schedule = {schedule:<22}# how lr falls: constant, linear, cosine, inverse-square-root, warmup-stable-decay
# warmup = {warmup:<24}# share of the budget in which lr rises first
# clip = 1.0                       # the largest norm of a gradient, or "none"
# validations = 10                 # how often in the run the validation data is scored and a checkpoint written
# patience = "none"                # stop after so many validations without a better score
# device = "auto"                  # cpu, cuda; auto: the GPU if there is one
# precision = "auto"               # float32, bfloat16; auto: bfloat16 on a GPU
# compile = "auto"                 # true, false; auto: on a GPU, where it helps
# tensorboard = false              # true: also write a log that TensorBoard shows
"""
MUON = """\
# matrix_lr = 0.02                 # the rate of the matrices
# momentum = 0.95                  # of the matrices
"""


class Kind(NamedTuple):
    """How a kind's file differs from the others'."""

    about: str
    layers: int = 2
    connection: str = "plain"
    norm: str = "none"
    parts: str = ""
    recurrent: bool = True
    muon: bool = False


_TEXTBOOK = ATTENTION.format(positions='"learned"', activation='"gelu"', qk_norm="false")
_BEST = ATTENTION.format(positions='"rotary"', activation='"squared-relu"', qk_norm="true")

LM: Mapping[str, Kind | None] = {
    "gpt": Kind("the best recipe known", 4, "residual", "rms", _BEST, recurrent=False, muon=True),
    "transformer": Kind("the textbook Transformer", 4, "residual", "layer", _TEXTBOOK, recurrent=False),
    "lstm": Kind("long short-term memory"),
    "gru": Kind("gated recurrent units"),
    "rnn": Kind("the plain recurrent network"),
    "window": Kind("a network over the last few tokens", 1, parts=CONTEXT, recurrent=False),
    "ngram": None,  # counted: it has no layers and needs no training options
}
TEMPLATES: Mapping[str, Mapping[str, Kind | None]] = {"lm": LM}


def _quoted(word: str) -> str:
    return f'"{word}"'


def _model(name: str, kind: Kind) -> str:
    top = STACK.format(kind=name, pad=" " * (26 - len(name)), about=kind.about, layers=kind.layers, width=256)
    return top + kind.parts + SIZES.format(connection=_quoted(kind.connection), norm=_quoted(kind.norm))


def _train(kind: Kind) -> str:
    values = {"optimizer": "adamw", "schedule": "cosine", "lr": "1e-3", "weight_decay": "0.1", "warmup": "0.02"}
    values |= {"beta2": "0.99", "muon": ""}
    if kind.recurrent:
        values |= {"lr": "3e-3", "weight_decay": "0.01"}
    if kind.muon:
        values |= {"optimizer": "muon", "schedule": "linear", "lr": "4e-3", "weight_decay": "0.1", "warmup": "0.0"}
        values |= {"beta2": "0.95", "muon": MUON}
    return TRAIN.format(**{name: _quoted(text) if name in ("optimizer", "schedule") else text for name, text in values.items()})


def template(task: str, name: str) -> str:
    """The run file for a kind of model."""
    kind = TEMPLATES[task][name]
    head = HEAD.format(name="run")
    return head + (NGRAM if kind is None else _model(name, kind) + _train(kind))
