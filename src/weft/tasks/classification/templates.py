"""Run files of classifiers to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.tasks.template_parts import (
    AVERAGE,
    COMMANDS,
    CONTEXT,
    FINE_TUNED,
    LEARNED,
    NONLINEARITY,
    PRETRAINED,
    READ,
    RECIPE,
    ROTARY,
    STACKED,
    quoted,
    stack,
    train,
)

LABELED = (
    COMMANDS
    + """\
#   weft predict runs/run "A text"        its label; without one, that of every line of standard input

task = "classification"                  # a label for a text, or for two
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.csv"                # .csv, .tsv, .xlsx, .jsonl, .parquet; lines that start with a label; a folder with
                                   # a file, or a folder, for every label; a path is seen from this file
valid = 0.1                        # files, or a share of train, drawn over all labels alike: chooses the best weights
test = 0.1                         # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
                                   # delimiter = ";": between the columns of .csv and .tsv, or "tab"; the comma,
                                   # semicolon or tab of the first line, unless given
                                   # sheet = "Data": of .xlsx, a name or a place from 1; the first, unless given
# text_column = "text"                    # the column of the texts: a name, a key of JSONL, or a place from 1 on; of two texts
                                   # ["premise", "hypothesis"]
# label_column = "label"                  # the column of the labels; without a header the first, and the text the next
# multilabel = false                    # true: a text may have several labels, or none
                                   # label_separator = ";": what stands between them; "," unless given
                                   # strip_label_after = ":": drops what follows it in a label, of NUM:date the date
# max_length = 1000                   # tokens of an example, of both its texts
# truncate = true                  # cut what is longer; false: refuse it, with its place
# skip_empty = true                # leave out examples without a text, with a note; false: refuse them
"""
)
TOKENIZER = """
[tokenizer]
# type = "word"                    # char (for names and words), byte, bpe, unigram, wordpiece, word, space
# vocab_size = 8000                      # most tokens kept
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
                                   # monitor = "f1_macro": keep what scores best so, or by f1_micro, log_loss, brier_score;
                                   # unless given, by accuracy (with several labels, exact_match)
"""
READING = {**RECIPE, "budget": "steps = 1000", "batch_tokens": "2048", "lr": "3e-3"}
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
    connection: str = "none"
    norm: str = "none"
    embedding_norm: str = "false"
    recipe: Mapping[str, str] = READING

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("pooling", "skip_connection", "norm")}
        model = self.parts + (STACKED + POOLED).format(**values)
        return LABELED + TOKENIZER + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


BASELINE = """
[model]
arch = "{name}"{pad}# {about}
{own}# balanced = false                 # true: rare labels count as much as frequent ones
#   [model.features]               # what a text is described by
#   analyzer = "word"              # word (of two letters and more), space, char, char_wb (inside words)
#   ngrams = [1, 2]                # the shortest and the longest n-gram
#   lowercase = true
#   min_count = 1                  # terms in fewer texts are dropped
                                   # max_features = 50000: only so many terms are kept, the most frequent
#   tfidf = {tfidf:<23}# rare terms count more, and long texts no more than short ones
#   sublinear = false              # true: 1 + ln(count) for the count
#   binary = false                 # true: 1 for any count
"""


class BaselineTemplate(NamedTuple):
    """A baseline has no layers, needs no training options, and its terms no tokenizer."""

    about: str
    own: str
    tfidf: str

    def text(self, name: str) -> str:
        return LABELED + BASELINE.format(name=name, pad=" " * (26 - len(name)), **self._asdict())


_EVENTS = """\
# events = "multinomial"           # multinomial: terms are drawn one by one; bernoulli: each is there or not
# alpha = 1.0                      # added to every count
"""
_PENALTY = """\
# C = 1.0                          # the smaller, the more the weights are pulled towards 0
"""

TEMPLATES: Mapping[str, Labelling | BaselineTemplate] = {
    "lstm": Labelling("long short-term memory"),
    "gru": Labelling("gated recurrent units"),
    "rnn": Labelling("the plain recurrent network", parts=NONLINEARITY),
    "conv": Labelling("a network over a few tokens, as in a CNN", parts=CONTEXT + NONLINEARITY),
    "transformer": Labelling("attention", 2, 0.3, "mean", ROTARY, "", "residual", "layer"),
    "bert": Labelling(PRETRAINED, 4, 0.1, "first", LEARNED, "", "post-norm", "layer", "true", TUNED_LABELS),
    "logistic-regression": BaselineTemplate("softmax regression: a baseline in seconds", _PENALTY, "true"),
    "naive-bayes": BaselineTemplate("by counting: a baseline in a second", _EVENTS, "false"),
}
