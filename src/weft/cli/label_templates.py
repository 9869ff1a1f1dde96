"""Run files to start from, of encoders: those that label texts, tag words, or fill gaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.cli.template_parts import ATTENTION, NONLINEARITY, quoted, stack, train

COMMANDS = """\
#   weft check run.toml                   look at the data before it is trained on
#   weft train run.toml                   train it (Ctrl-C stops and saves; the same command resumes)
#   weft evaluate runs/run                scores on the test data
"""
STACKED = """\
# two_way = true                   # reads from both ends
# dropout = {dropout:<23}# the smaller the data, the more, up to 0.5
                                   # embedding_dropout = 0.1: of the embeddings alone; as dropout, unless given
                                   # word_dropout = 0.1: share of tokens that training reads as <unk>
{read}# embedding_norm = {embedding_norm:<16}# embeddings are normalised before the first layer, as in BERT
# connection = {connection:<20}# between layers: plain, residual, post-norm, highway, dense
# norm = {norm:<26}# none, layer, rms
"""
READ = """\
                                   # embedding = 300: the size of a token's vector; as width, unless given
"""
CONTEXT = """\
# context = 3                      # tokens that a position sees: itself, in the middle, and those on either side
"""
AVERAGE = """\
# average = 0.99                   # what is kept is an average of the weights, with this decay; or "none"
"""
_ROTARY = ATTENTION.format(positions='"rotary"', activation='"gelu"', qk_norm="false")
_LEARNED = ATTENTION.format(positions='"learned"', activation='"gelu"', qk_norm="false")
_RECIPE = {
    "optimizer": "adamw", "beta2": "0.99", "weight_decay": "0.01", "schedule": "cosine", "warmup": "0.05", "muon": "",
}  # fmt: skip
PRETRAINED = "Devlin et al. 2019: give --init-from RUN"
FINE_TUNED = {
    **_RECIPE, "budget": "epochs = 3.0", "batch_tokens": "8192", "lr": "5e-5", "smoothing": "", "schedule": "linear",
    "warmup": "0.1",
}  # fmt: skip

# ---- classifiers

LABELLED = (
    COMMANDS
    + """\
#   weft predict runs/run "A text"        its label; without one, that of every line of standard input

task = "classify"                  # a label for a text, or for two
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.csv"                # .csv, .tsv, .jsonl; lines that start with their label; a folder with a file, or a
                                   # folder, for every label; a path is seen from this file
valid = 0.1                        # files, or a share of train, drawn over all labels alike: chooses the best weights
test = 0.1                         # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
# text = "text"                    # the column of the texts: a name, a key of JSONL, or a place from 1 on; of two texts
                                   # ["premise", "hypothesis"]
# label = "label"                  # the column of the labels; without a header the first, and the text the next
# multi = false                    # true: a text may have several labels, or none
                                   # separator = ";": what stands between them; "," unless given
                                   # coarse = ":": drops what follows it in a label, of NUM:date the date
# longest = 1000                   # tokens of an example, of both its texts
# truncate = true                  # cut what is longer; false: refuse it, with its place
# skip_empty = true                # leave out examples without a text, with a note; false: refuse them
"""
)
TOKENIZER = """
[tokenizer]
# kind = "word"                    # char (for names and words), byte, bpe, unigram, wordpiece, word, space
# size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
POOLED = """\
# pool = {pool:<26}# how a text becomes one vector: first, last, mean, max, attention
# balanced = false                 # true: in training, rare labels count as much as frequent ones
"""
LABEL_SMOOTHING = """\
# label_smoothing = 0.1            # the share of each answer that all labels have in common
"""
ACCURATE = """\
                                   # monitor = "macro_f1": keep what scores best so, or by micro_f1, log_loss, brier;
                                   # unless given, by accuracy (with several labels, exact_match)
"""
READING = {**_RECIPE, "budget": "steps = 1000", "batch_tokens": "2048", "lr": "3e-3"}
READING |= {"smoothing": LABEL_SMOOTHING + AVERAGE, "monitor": ACCURATE}
TUNED_LABELS = {**FINE_TUNED, "monitor": ACCURATE}


class Labelling(NamedTuple):
    """How the file of a kind of classifier differs from the others'."""

    about: str
    layers: int = 1
    dropout: float = 0.5
    pool: str = "max"
    parts: str = ""
    read: str = READ
    connection: str = "plain"
    norm: str = "none"
    embedding_norm: str = "false"
    recipe: Mapping[str, str] = READING

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("pool", "connection", "norm")}
        model = self.parts + (STACKED + POOLED).format(**values)
        return LABELLED + TOKENIZER + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


SOLVED = """
[model]
kind = "{name}"{pad}# {about}
{own}# balanced = false                 # true: rare labels count as much as frequent ones
#   [model.features]               # what a text is described by
#   analyzer = "word"              # word (of two letters and more), space, char, char_wb (inside words)
#   ngrams = [1, 2]                # the shortest and the longest n-gram
#   lowercase = true
#   min_count = 1                  # terms in fewer texts are dropped
                                   # most = 50000: only so many terms are kept, the most frequent
#   tfidf = {tfidf:<23}# rare terms count more, and long texts no more than short ones
#   sublinear = false              # true: 1 + ln(count) for the count
#   binary = false                 # true: 1 for any count
"""


class Solved(NamedTuple):
    """A baseline has no layers, needs no training options, and its terms no tokenizer."""

    about: str
    own: str
    tfidf: str

    def text(self, name: str) -> str:
        return LABELLED + SOLVED.format(name=name, pad=" " * (26 - len(name)), **self._asdict())


_EVENTS = """\
# events = "multinomial"           # multinomial: terms are drawn one by one; bernoulli: each is there or not
# alpha = 1.0                      # added to every count
"""
_PENALTY = """\
# C = 1.0                          # the smaller, the more the weights are pulled towards 0
"""

CLASSIFY: Mapping[str, Labelling | Solved] = {
    "lstm": Labelling("long short-term memory"),
    "gru": Labelling("gated recurrent units"),
    "rnn": Labelling("the plain recurrent network", parts=NONLINEARITY),
    "window": Labelling("a network over a few tokens, as in a CNN", parts=CONTEXT + NONLINEARITY),
    "transformer": Labelling("attention", 2, 0.3, "mean", _ROTARY, "", "residual", "layer"),
    "bert": Labelling(PRETRAINED, 4, 0.1, "first", _LEARNED, "", "post-norm", "layer", "true", TUNED_LABELS),
    "regression": Solved("softmax regression: a baseline in seconds", _PENALTY, "true"),
    "naive-bayes": Solved("by counting: a baseline in a second", _EVENTS, "false"),
}

# ---- taggers

TAGGED = (
    COMMANDS
    + """\
#   weft predict runs/run "Some words"    their tags; without them, those of every line of standard input

task = "tag"                       # a tag for every word: parts of speech, entities
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.conllu"             # CoNLL-U, or columns and a blank line after each sentence; a path is seen from here
valid = 0.1                        # files, or the share of train that is taken off its end: chooses the best weights
test = 0.1                         # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
                                   # word = 1: the column of the words; form in CoNLL-U, else the first, unless given
                                   # tag = "xpos": that of the tags; upos in CoNLL-U, else the last, unless given
# longest = 1000                   # tokens of a sentence at most: a longer one is refused, with its place

[tokenizer]
# kind = "space"                   # space: a word is a token; of bpe, unigram, wordpiece, word, byte, char one or more
# size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
)
HEADED = """\
# head = "crf"                     # crf: the tags of a sentence are scored together; linear: each by itself
#   [model.spelling]               # an encoder of letters: what a word is spelled like stands beside it
#   mixer = "lstm"                 # window, rnn, lstm, gru, attention, and all that stacks have
#   layers = 1
#   width = 64
#   embedding = 32                 # of a letter
#   pool = "max"                   # how letters become one vector: first, last, mean, max, attention
"""
LINEAR = """\
# head = "linear"                  # crf: the tags of a sentence are scored together; linear: each by itself
# spelling = "none"                # [model.spelling], with mixer = "lstm", layers = 1, width = 64, embedding = 32 and
                                   # pool = "max" (or first, last, mean, attention), is an encoder of letters
"""
SCORED = """\
                                   # monitor = "token_accuracy": keep what scores best so; unless given, by span_f1 if
                                   # tags mark spans, else by token_accuracy
"""
TAGGING = {**_RECIPE, "budget": "epochs = 20.0", "batch_tokens": "1024", "lr": "2e-3", "smoothing": AVERAGE, "monitor": SCORED}


class Tagging(NamedTuple):
    """How the file of a kind of tagger differs from the others'."""

    about: str
    layers: int = 1
    dropout: float = 0.5
    parts: str = ""
    read: str = READ
    connection: str = "plain"
    norm: str = "none"
    embedding_norm: str = "false"
    head: str = HEADED
    recipe: Mapping[str, str] = TAGGING

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("connection", "norm")}
        model = self.parts + (STACKED + self.head).format(**values)
        return TAGGED + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


TAG: Mapping[str, Tagging] = {
    "lstm": Tagging("long short-term memory"),
    "gru": Tagging("gated recurrent units"),
    "rnn": Tagging("the plain recurrent network", parts=NONLINEARITY),
    "window": Tagging("a network over a few tokens, as in a CNN", parts=CONTEXT + NONLINEARITY),
    "transformer": Tagging("attention", 2, 0.3, _ROTARY, "", "residual", "layer"),
    "bert": Tagging(PRETRAINED, 4, 0.1, _LEARNED, "", "post-norm", "layer", "true", LINEAR, {**FINE_TUNED, "monitor": SCORED}),
}

# ---- masked language models

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
# read = "windows"                 # "windows": running text in shuffled windows; "lines": each line stands for itself
# window = 256                     # tokens in a window
# stride = 256                     # from one window to the next (windows only); smaller: windows overlap

[tokenizer]
# kind = "char"                    # char, byte, bpe, unigram, wordpiece (as in BERT), word, space
# size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
)
FILLED = """\
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
MUON = """\
# matrix_lr = 0.02                 # the rate of the matrices
# momentum = 0.95                  # of the matrices
"""
_PLAIN = {"budget": "steps = 2000", "batch_tokens": "4096", "smoothing": "", "monitor": "", **_RECIPE}
_RECURRENT = {**_PLAIN, "lr": "3e-3", "warmup": "0.02"}
_BERT = {**_PLAIN, "lr": "5e-4", "schedule": "linear", "warmup": "0.1"}
_MUON = {**_BERT, "optimizer": "muon", "lr": "4e-3", "beta2": "0.95", "weight_decay": "0.1", "warmup": "0.0", "muon": MUON}


class Filling(NamedTuple):
    """How the file of a kind of masked language model differs from the others'."""

    about: str
    recipe: Mapping[str, str]
    layers: int = 4
    dropout: float = 0.1
    parts: str = ""
    connection: str = "plain"
    norm: str = "none"
    embedding_norm: str = "false"
    transform: str = "false"

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("connection", "norm")}
        model = self.parts + FILLED.format(**values)
        return HIDDEN + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


_NORMED = ATTENTION.format(positions='"rotary"', activation='"gelu"', qk_norm="true")

MASKED: Mapping[str, Filling] = {
    "transformer": Filling("the better recipe", _MUON, parts=_NORMED, connection="residual", norm="rms"),
    "bert": Filling(
        "Devlin et al. 2019",
        _BERT,
        parts=_LEARNED,
        connection="post-norm",
        norm="layer",
        embedding_norm="true",
        transform="true",
    ),
    "lstm": Filling("long short-term memory, both ways", _RECURRENT, 2, 0.0),
}
