"""The exceptions of weft. Each message is one line: where, what is wrong, what to do.

WeftError               1  base class; any other failure
├── UsageError          2  wrong command line, call or option value
│   └── ConfigError     2  invalid run file
├── DataError           3  text or data that cannot be used
├── ModelError          4  run directory or model file that is damaged, incompatible or from another version
│   └── LogError        4  damaged log of a run
├── ResourceError       5  memory, disk, or a directory in use
│   └── InUseError      5  another process uses the directory
├── DivergedError       6  the loss, a gradient or a weight became NaN or infinite
├── GroupError          7  a process of a group died or does not answer
└── TrainingInterrupted 130  training was stopped on request and has saved

The number is the exit code of the command line; signals give 129 (SIGHUP), 130 (SIGINT) and 143 (SIGTERM).

Messages name call arguments in backticks (`top_p`), which the command line prints as flags (--top-p), and options of the run
file by their dotted names (train.lr). Code that handles an error reads its fields, never its text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from os import PathLike


class WeftError(Exception):
    """Base class. `where` is an option, an argument or `file:line`, `problem` is what is wrong, `fix` is an imperative. `where`
    and `fix` may be empty."""

    exit_code = 1

    def __init__(self, where: str | PathLike[str], problem: str, fix: str = "") -> None:
        super().__init__(where, problem, fix)  # the same arguments, so that the error can be pickled between processes
        self.where, self.problem, self.fix = str(where), problem, fix

    def __str__(self) -> str:
        return "; ".join(filter(None, (": ".join(filter(None, (self.where, self.problem))), self.fix)))


class UsageError(WeftError):
    exit_code = 2


class ConfigError(UsageError):
    """`where` is the dotted name of an option. `is_unknown`: no option has it. `has_suggestion`: a similar one exists."""

    def __init__(
        self,
        where: str | PathLike[str],
        problem: str,
        fix: str = "",
        *,
        is_unknown: bool = False,
        has_suggestion: bool = False,
    ) -> None:
        super().__init__(where, problem, fix)
        self.is_unknown, self.has_suggestion = is_unknown, has_suggestion


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


class GroupError(WeftError):
    """One of several processes that work together died, or cannot be reached. The last checkpoint is intact."""

    exit_code = 7


class TrainingInterrupted(WeftError):
    """Ctrl-C or a callback stopped training after a checkpoint was saved. The same call or command resumes it."""

    exit_code = 130


# fmt: off
_ALIASES: dict[str, tuple[str, ...]] = {  # names in weft, and names that other libraries and people use
    # options of the run file
    "lr": ("learning_rate",), "hidden_size": ("width", "hidden_dim", "d_model", "n_embd", "embedding_dim", "embed_dim"),
    "num_layers": ("layers", "n_layers", "n_layer", "num_hidden_layers"), "num_heads": ("heads", "n_head", "nhead",
    "num_attention_heads"), "max_epochs": ("epochs", "num_train_epochs", "num_epochs", "n_epochs"), "max_steps": ("steps",
    "iterations", "num_steps", "max_iters"), "batch_tokens": ("batch_size", "per_device_train_batch_size", "train_batch_size"),
    "patience": ("early_stopping", "early_stopping_patience"), "max_grad_norm": ("clip", "gradient_clipping", "grad_clip"),
    "warmup_ratio": ("warmup", "warmup_steps"), "lr_schedule": ("schedule", "lr_scheduler",
    "lr_scheduler_type", "scheduler"), "dropout": ("hidden_dropout_prob", "dropout_rate"), "weight_decay": ("l2",),
    "micro_batches": ("gradient_accumulation_steps", "accumulate"), "ffn_dim": ("intermediate_size", "dim_feedforward", "d_ff",
    "feed_forward"), "label_smoothing": ("label_smoothing_factor",), "monitor": ("metric_for_best_model",),
    "optimizer": ("optim",), "precision": ("fp16", "bf16", "dtype"), "ema_decay": ("ema", "average"),
    "init_from": ("pretrained", "from_pretrained", "pretrained_model_name_or_path"), "vocab_size": ("size",),
    "arch": ("kind", "architecture", "model_type"),
    "valid": ("validation", "dev", "validation_file", "eval_file"), "seed": ("random_state", "random_seed"), "max_length":
    ("longest", "max_seq_length", "maxlen"), "context_length": ("window", "block_size", "seq_len", "max_length", "n_ctx"),
    "muon_lr": ("matrix_lr",), "adam_beta2": ("beta2",), "class_weight": ("balanced", "class_weights"), "init_strict":
    ("init_loose",), "kernel_size": ("context",), "type": ("kind",), "cuda": ("gpu",), "cpu": ("mps",),
    # architectures, tasks, views
    "conv": ("cnn", "textcnn", "window"), "logistic_regression": ("svm", "logreg", "logistic", "tfidf", "regression"),
    "naive_bayes": ("nb", "bayes", "multinomialnb"), "ngram": ("n_gram", "kenlm", "markov"), "lstm": ("bilstm",),
    "gpt": ("gpt2",), "bert": ("roberta", "distilbert"), "tagging": ("ner", "pos", "tag", "token_classification"),
    "qa": ("squad", "question_answering", "span"), "classification": ("sentiment", "classify", "text_classification"),
    "masked_lm": ("mlm", "fill_mask"), "seq2seq": ("translation", "translate", "summarization", "g2p",
    "mt", "nmt", "machine_translation"),
    "lm": ("language_model", "text_generation", "causal_lm"), "attribution": ("saliency", "integrated_gradients", "shap",
    "lime"), "logit_lens": ("lens",), "gradient_flow": ("gradients",),
    # commands and their options
    "train": ("finetune", "fine_tune", "train_file"), "evaluate": ("eval", "test", "validate"),
    "predict": ("infer", "inference", "transform", "fill", "translate", "classify", "tag"), "generate": ("sample",),
    "info": ("inspect", "describe", "summary"), "compare": ("benchmark", "report"), "score": ("perplexity",),
    "embed": ("encode",), "check": ("gradcheck", "lint"), "analyze": ("geometry", "similarity", "probe"),
    "max_new_tokens": ("length", "max_length"), "min_new_tokens": ("least",), "beam_size": ("num_beams", "beam"),
    "num_samples": ("num_return_sequences", "samples"), "length_penalty": ("alpha",), "repetition_penalty": ("repetition",),
    "no_repeat_ngram_size": ("no_repeat",), "overwrite": ("fresh", "overwrite_output_dir"), "output_dir": ("out",),
    "output": ("out",), "set": ("override",),
    "data": ("test", "split", "dataset", "test_file", "test_data"),
}
# fmt: on
SYNONYMS: dict[str, list[str]] = {}  # from an alias to all names in weft
for _name, _aliases in _ALIASES.items():
    for _alias in _aliases:
        SYNONYMS.setdefault(_alias, []).append(_name)
MAX_LISTED = 12  # names in a message


def _normalized(name: str) -> str:
    """'--max-length' -> 'max_length'."""
    return name.lstrip("-").lower().replace("-", "_")


def synonym(name: str, known: Iterable[str]) -> str | None:
    """The known name that has `name` as an alias; None if there is none."""
    synonyms = SYNONYMS.get(_normalized(name), [])
    return next((candidate for candidate in known if _normalized(candidate) in synonyms), None)


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to an unknown one: a synonym, else the most similar name, else None."""
    names = list(known)
    return synonym(name, names) or next(iter(difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)), None)


def suggest(name: str, known: Iterable[str]) -> str:
    """The fix for an unknown name: the closest known name, else a list of all names if there are few."""
    names = list(known)
    closest = closest_name(name, names)
    if closest is not None:
        return f"did you mean {closest!r}?"
    return f"choose from {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""


def unknown_name(noun: str, name: str, known: Iterable[str]) -> tuple[str, str]:
    """Problem and fix for an unknown name: `raise UsageError("metric", *unknown_name(...))`."""
    return f"unknown {noun} {name!r}", suggest(name, known)


def unknown_option(table: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown option `name` of `table`, whose options are `known`."""
    names, option = list(known), f"{table}.{name}" if table else name
    has_suggestion = closest_name(name, names) is not None
    return ConfigError(option, "unknown option", suggest(name, names), is_unknown=True, has_suggestion=has_suggestion)
