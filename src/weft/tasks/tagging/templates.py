"""Run files of taggers to start from."""

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

TAGGED = (
    COMMANDS
    + """\
#   weft predict runs/run "Some words"    their tags; without them, those of every line of standard input

task = "tagging"                       # a tag for every word: parts of speech, entities
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.conllu"             # CoNLL-U, or columns and a blank line after each sentence; a path is seen from here
valid = 0.1                        # files, or the share of train that is taken off its end: chooses the best weights
test = 0.1                         # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
                                   # word_column = 1: the column of the words; form in CoNLL-U, else the first, unless given
                                   # tag_column = "xpos": that of the tags; upos in CoNLL-U, else the last, unless given
# max_length = 1000                   # tokens of a sentence at most: a longer one is refused, with its place

[tokenizer]
# type = "whitespace"                   # space: a word is a token; of bpe, unigram, wordpiece, word, byte, char one or more
# vocab_size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
"""
)
HEADED = """\
# head = "crf"                     # crf: the tags of a sentence are scored together; linear: each by itself
#   [model.char_encoder]               # an encoder of letters: what a word is spelled like stands beside it
#   mixer = "lstm"                 # window, rnn, lstm, gru, attention, and all that stacks have
#   layers = 1
#   width = 64
#   embedding = 32                 # of a letter
#   pool = "max"                   # how letters become one vector: first, last, mean, max, attention
"""
LINEAR = """\
# head = "linear"                  # crf: the tags of a sentence are scored together; linear: each by itself
# spelling = "none"                # [model.char_encoder], with mixer = "lstm", layers = 1, width = 64, embedding = 32 and
                                   # pool = "max" (or first, last, mean, attention), is an encoder of letters
"""
SCORED = """\
                                   # monitor = "token_accuracy": keep what scores best so; unless given, by span_f1 if
                                   # tags mark spans, else by token_accuracy
"""
TAGGING = {**RECIPE, "budget": "epochs = 20.0", "batch_tokens": "1024", "lr": "2e-3", "smoothing": AVERAGE, "monitor": SCORED}


class Tagging(NamedTuple):
    """How the file of a kind of tagger differs from the others'."""

    about: str
    layers: int = 1
    dropout: float = 0.5
    parts: str = ""
    read: str = READ
    connection: str = "none"
    norm: str = "none"
    embedding_norm: str = "false"
    head: str = HEADED
    recipe: Mapping[str, str] = TAGGING

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("skip_connection", "norm")}
        model = self.parts + (STACKED + self.head).format(**values)
        return TAGGED + stack(name, self.about, self.layers, 256) + model + train(self.recipe)


TEMPLATES: Mapping[str, Tagging] = {
    "lstm": Tagging("long short-term memory"),
    "gru": Tagging("gated recurrent units"),
    "rnn": Tagging("the plain recurrent network", parts=NONLINEARITY),
    "conv": Tagging("a network over a few tokens, as in a CNN", parts=CONTEXT + NONLINEARITY),
    "transformer": Tagging("attention", 2, 0.3, ROTARY, "", "residual", "layer"),
    "bert": Tagging(PRETRAINED, 4, 0.1, LEARNED, "", "post-norm", "layer", "true", LINEAR, {**FINE_TUNED, "monitor": SCORED}),
}
