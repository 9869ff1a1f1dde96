"""Everything weft raises on purpose. One line each: where, what was seen, what to do.

WeftError               1  anything below; also a failure that fits none of them
├── UsageError          2  a wrong command line, call or option value
│   └── ConfigError     2  a run file that can't be right
├── DataError           3  text or data that can't be used
├── ModelError          4  a run folder or model file that is damaged, of another version, or does not fit
│   └── LogError        4  a log of a run that is damaged
├── ResourceError       5  memory, disk, or a folder in use
│   └── InUseError      5  another process holds the folder
├── DivergedError       6  the loss, a gradient or a weight became NaN or Inf
└── TrainingInterrupted 130  training was stopped on request, and has saved

The number is the exit code of the command line; signals give 129 (SIGHUP), 130 (SIGINT) and 143 (SIGTERM).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WeftError(Exception):
    exit_code = 1


class UsageError(WeftError):
    exit_code = 2


class ConfigError(UsageError):
    """`option` is the dotted name of what is wrong, where that is one option; what decides by an error looks at its fields,
    never at its words."""

    def __init__(self, text: str, *, option: str = "", unknown: bool = False, near: bool = False) -> None:
        super().__init__(text)
        self.option = option
        self.unknown = unknown  # there is no option of that name
        self.near = near  # but one of a like name

    @property
    def reason(self) -> str:
        """What is wrong, without the option's name."""
        return str(self).removeprefix(f"{self.option}: ") if self.option else str(self)


class DataError(WeftError):
    exit_code = 3


class ModelError(WeftError):
    exit_code = 4


class LogError(ModelError):
    pass


class ResourceError(WeftError):
    exit_code = 5


class InUseError(ResourceError):
    pass


class DivergedError(WeftError):
    exit_code = 6


class TrainingInterrupted(WeftError):
    """Training was stopped on request, by Ctrl-C or a callback, and has saved: the same call, or command, resumes it."""

    exit_code = 130


# fmt: off
_ALIKE: dict[str, tuple[str, ...]] = {  # what is called so here, and how other libraries and people call it
    # tables of the run file
    "lr": ("learning_rate",), "width": ("hidden_size", "hidden_dim", "d_model", "n_embd", "embedding_dim", "embed_dim"),
    "layers": ("num_layers", "n_layers", "n_layer", "num_hidden_layers"), "heads": ("num_heads", "n_head", "nhead",
    "num_attention_heads"), "epochs": ("num_train_epochs", "num_epochs", "max_epochs", "n_epochs"), "steps": ("max_steps",
    "iterations", "num_steps"), "batch_tokens": ("batch_size", "per_device_train_batch_size", "train_batch_size"),
    "patience": ("early_stopping", "early_stopping_patience"), "clip": ("max_grad_norm", "gradient_clipping", "grad_clip"),
    "two_way": ("bidirectional",), "warmup": ("warmup_steps", "warmup_ratio"), "schedule": ("lr_scheduler",
    "lr_scheduler_type", "scheduler"), "dropout": ("hidden_dropout_prob", "dropout_rate"), "weight_decay": ("l2",),
    "accumulate": ("gradient_accumulation_steps",), "feed_forward": ("intermediate_size", "dim_feedforward", "d_ff"),
    "label_smoothing": ("label_smoothing_factor",), "monitor": ("metric_for_best_model",), "optimizer": ("optim",),
    "precision": ("fp16", "bf16", "dtype"), "average": ("ema", "ema_decay"), "init_from": ("pretrained", "from_pretrained",
    "pretrained_model_name_or_path"), "size": ("vocab_size",), "kind": ("arch", "architecture", "model_type"),
    "valid": ("validation", "dev", "validation_file", "eval_file"), "seed": ("random_state", "random_seed"),
    "longest": ("max_length", "max_seq_length", "maxlen"), "cuda": ("gpu",), "cpu": ("mps",),
    # kinds, tasks, views
    "window": ("cnn", "textcnn", "conv", "block_size", "seq_len"), "regression": ("svm", "logreg", "logistic", "tfidf",
    "logistic_regression"), "naive_bayes": ("nb", "bayes", "multinomialnb"), "ngram": ("n_gram", "kenlm", "markov"),
    "lstm": ("bilstm",), "gpt": ("gpt2",), "bert": ("roberta", "distilbert"),
    "tag": ("ner", "pos", "tagging", "token_classification"), "span": ("qa", "squad", "question_answering"),
    "classify": ("sentiment", "classification", "text_classification"), "masked_lm": ("mlm", "fill_mask"),
    "translate": ("translation", "summarization", "seq2seq", "g2p"), "lm": ("language_model", "text_generation", "causal_lm"),
    "attribution": ("saliency", "integrated_gradients", "shap", "lime"), "lens": ("logit_lens",),
    "gradients": ("gradient_flow",),
    # commands and their options
    "train": ("fit", "finetune", "fine_tune", "train_file"), "evaluate": ("eval", "test", "validate"),
    "predict": ("infer", "inference", "transform"), "generate": ("sample",), "info": ("inspect", "describe", "summary"),
    "compare": ("benchmark",), "score": ("perplexity",), "embed": ("encode",), "length": ("max_new_tokens", "max_length"),
    "least": ("min_new_tokens",), "beam": ("num_beams", "beam_size"), "samples": ("num_return_sequences",),
    "alpha": ("length_penalty",), "repetition": ("repetition_penalty",), "no_repeat": ("no_repeat_ngram_size",),
    "fresh": ("overwrite", "overwrite_output_dir"), "out": ("output_dir", "output"),
}
# fmt: on
_PAIRS = [(other, name) for name, others in _ALIKE.items() for other in others]
SYNONYMS: dict[str, list[str]] = {other: [name for one, name in _PAIRS if one == other] for other, _ in _PAIRS}


def _plain(name: str) -> str:
    """A name without what tells an option from a word: --max-length is max_length."""
    return name.lstrip("-").lower().replace("-", "_")


def synonym(name: str, known: Iterable[str]) -> str | None:
    """What is called by another name here, if it is known."""
    meant = SYNONYMS.get(_plain(name), [])
    return next((one for one in known if _plain(one) in meant), None)


def close(name: str, known: Iterable[str]) -> str | None:
    """The known name that one which is not known stands for, if any: what other libraries call so, else the most like it."""
    names = list(known)
    return synonym(name, names) or next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)


def unknown_option(place: str, name: str, known: Iterable[str]) -> ConfigError:
    """The refusal of `name` in the table `place`, which has the options `known`."""
    names, option = list(known), f"{place}.{name}" if place else name
    text = f"{option}: no such option{nearest(name, names)}"
    return ConfigError(text, option=option, unknown=True, near=close(name, names) is not None)


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'? known: x, y', the part of a message that helps whoever misspelt a name."""
    names = list(known)
    if not names:
        return "; there is none"
    found = close(name, names)
    hint = f"; did you mean {found!r}?" if found is not None else ";"
    return f"{hint} known: {', '.join(names)}"
