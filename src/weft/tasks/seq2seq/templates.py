"""Run files of encoder-decoders to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.tasks.template_parts import (
    ATTENTION,
    NONLINEARITY,
    quoted,
    stack,
    train,
)

PAIRS = """\
#   weft check run.toml                   look at the data before it is trained on
#   weft train run.toml                   train it (Ctrl-C stops and saves; the same command resumes)
#   weft evaluate runs/run                scores on the test data
#   weft predict runs/run "A line"       what a line becomes; without one, every line of standard input

task = "seq2seq"                 # one line in, one line out: translate, pronounce, inflect, summarise, parse
# seed = 0                         # another seed, another run of the same model

[data]
train = "train.tsv"                # .tsv, .csv, .xlsx, .jsonl, .parquet, or two files: ["a.en", "a.de"]; a path is seen
                                   # from this file
valid = 0.05                       # a file, or the share of train that is taken off its end: chooses the best weights
test = 0.05                        # likewise: what weft evaluate scores; nothing is chosen by it
# encoding = "utf-8"               # or "latin-1", "cp1252", "utf-16" ...
                                   # delimiter = ";": between the columns of .csv and .tsv, or "tab"; the comma,
                                   # semicolon or tab of the first line, unless given
                                   # sheet = "Data": of .xlsx, a name or a place from 1; the first, unless given
# source_column = "source"                # which columns are read: keys of JSONL, or names in the first line of a table;
# target_column = "target"                # where that has no names, the first two columns
# max_length = 1000                   # tokens of a side at most: a longer one is refused, with its place
# truncate = false                 # true: it is cut instead

[tokenizer]                        # one for both sides
# type = "char"                    # char, byte, bpe (for sentences), unigram, wordpiece, word, space
# vocab_size = 8000                      # most tokens kept
                                   # or the tokenizer of another run: file = "runs/x/tokenizer.json"
                                   # or one for each side, such as letters in, phones out:
#   [tokenizer.source]
#   kind = "char"
#   [tokenizer.target]
#   kind = "whitespace"
"""
READS = """\
# attention = {attention:<21}# how the decoder reads the source: none, dot, scaled-dot, multiplicative, additive
"""
DEPTH = """\
# attention_size = {width:<16}# how long w in the score w . tanh(Uq + Wk) is; the decoder's width, unless given
"""
AROUND = """\
# place = {place:<25}# attention after the recurrent step, or before it, as a part of its input (slower)
# feeding = {feeding:<23}# true: what was read out stands beside the next step's input (slower)
"""
SUMMARY = """\
# every_step = {every_step:<20}# true: every step of the decoder sees the encoder's summary, not the first alone
"""
BRIDGE = """\
# bridge = {bridge:<24}# how the decoder starts: copy (of the encoder's end), or project (of its summary)
"""
BLOCKS = """\
# attention = {attention:<21}# how the decoder reads the source: scaled-dot, or none (as one vector)
# attention_dropout = 0.0          # of the weights of attention
"""
BOTH = """\
# dropout = {dropout:<23}# the smaller the data, the more, up to 0.5
                                   # embedding_dropout = 0.1: of the embeddings alone; as dropout, unless given
                                   # embedding = 256: the size of a token's vector; as width, unless given
# copying = false                  # true: a token may be copied from the source (needs one tokenizer)
# shared = false                   # true: one embedding for both sides (needs one tokenizer)
# tied = false                     # true: one matrix for reading and for predicting targets
# cap = "none"                     # a number: scores stay within +-cap, smoothly
# connection = {connection:<20}# between layers: plain, residual, post-norm, highway, dense
# norm = {norm:<26}# none, layer, rms
                                   # where the sides differ, also in mixer (rnn, lstm, gru, gru-before, attention):
#   [model.encoder]
#   two_way = {two_way:<21}# reads from both ends
#   reverse = {reverse:<21}# reads from the end to the beginning (one way only)
#   embedding_norm = false         # true: embeddings are normalised before the first layer, as in BERT
#   [model.decoder]
#   layers = {layers:<22}# of this side alone
"""
SMOOTHING = """\
# label_smoothing = 0.1            # the share of each target that all tokens have in common
# average = 0.99                   # what is kept is an average of the weights, with this decay; or "none"
"""
PAIR_SAMPLES = """\
# samples = 0                      # so many lines of the validation data are translated each time, for samples.jsonl
"""
MONITOR = """\
                                   # monitor = "exact_match": keep what scores best so, or by bleu, chrf, token_error_rate;
                                   # unless given, by loss
"""
_RECIPE = {
    "budget": "steps = 3500", "batch_tokens": "2048", "optimizer": "adamw", "lr": "1e-3", "adam_beta2": "0.98",
    "weight_decay": "0.0", "schedule": "cosine", "warmup": "0.08", "muon": "", "smoothing": SMOOTHING, "monitor": MONITOR,
    "samples": PAIR_SAMPLES,
}  # fmt: skip


class Pairs(NamedTuple):
    """How the file of a kind of encoder-decoder differs from the others'."""

    about: str
    num_layers: int = 1
    hidden_size: int = 256
    dropout: float = 0.3
    attention: str = "multiplicative"
    attention_placement: str = "after"
    input_feeding: str = "false"
    bridge: str = "copy"
    feed_context: str = "false"
    bidirectional: str = "true"
    reverse_source: str = "false"
    parts: str = ""  # of a Transformer
    skip_connection: str = "none"
    norm: str = "none"
    extra: str = ""  # of a plain recurrent network

    def text(self, name: str) -> str:
        values = self._asdict() | {key: quoted(getattr(self, key)) for key in ("attention", "attention_placement", "bridge")}
        values |= {key: quoted(getattr(self, key)) for key in ("skip_connection", "norm")}
        deep = DEPTH if self.attention == "additive" else ""
        recurrent = READS + deep + (SUMMARY if self.attention == "none" else AROUND) + BRIDGE + self.extra
        model = ((self.parts or recurrent) + BOTH).format(**values)
        return PAIRS + stack(name, self.about, self.num_layers, self.hidden_size) + model + train(_RECIPE)


_BLOCKS = BLOCKS + ATTENTION.format(positions='"sinusoidal"', activation='"relu"', qk_norm="false")

TEMPLATES: Mapping[str, Pairs] = {
    "seq2seq": Pairs(
        "the best recipe known for small data", hidden_size=512, dropout=0.4, input_feeding="true", bridge="project"
    ),
    "transformer": Pairs(
        "the Transformer of Vaswani et al. 2017, but pre-norm",
        3,
        dropout=0.1,
        attention="scaled-dot",
        parts=_BLOCKS,
        skip_connection="residual",
        norm="layernorm",
    ),
    "lstm": Pairs("long short-term memory, with attention"),
    "gru": Pairs("gated recurrent units, with attention"),
    "rnn": Pairs("the plain recurrent network, with attention", extra=NONLINEARITY),
    "bahdanau": Pairs(
        "Bahdanau et al. 2015: the first with attention",
        dropout=0.0,
        attention="additive",
        attention_placement="before",
        bridge="project",
    ),
    "luong": Pairs("Luong et al. 2015", 2, dropout=0.2, input_feeding="true", bidirectional="false"),
    "sutskever": Pairs(
        "Sutskever et al. 2014: no attention", 4, dropout=0.0, attention="none", bidirectional="false", reverse_source="true"
    ),
    "cho": Pairs(
        "Cho et al. 2014: no attention",
        dropout=0.0,
        attention="none",
        bridge="project",
        feed_context="true",
        bidirectional="false",
    ),
}
