"""Compare an exported directory with the run that it is from, both computed by torch on the same random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.interop.export_record import ExportCheck
from weft.interop.hf_export_parts import Comparison
from weft.runs.run import AnyRun

MAX_DIFFERENCE = 1e-4
SHAPES = ((1, 2), (3, 7), (2, 40))  # rows and tokens; the longest is cut to what the model reads
MIN_LOG_PROB = -30.0  # smaller ones differ by rounding, and are probabilities of 0


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and reports of transformers."""
    logging: Any = import_module("transformers.utils.logging")
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def load_model(directory: Path, class_name: str) -> Any:
    """The model of a directory, by transformers, in float32. Nothing is downloaded and no code of the directory is run."""
    import transformers

    with quiet():
        model_class = getattr(transformers, class_name)
        return model_class.from_pretrained(directory, local_files_only=True, dtype=torch.float32).eval()


def random_tokens(vocab_size: int, max_length: int | None) -> list[Tensor]:
    """Batches of tokens of different shapes."""
    generator = torch.Generator().manual_seed(1)
    longest = SHAPES[-1][1] if max_length is None else max_length
    shapes = [(rows, min(length, longest)) for rows, length in SHAPES]
    low = min(3, vocab_size - 1)  # special tokens have their own places
    return [torch.randint(low, vocab_size, shape, generator=generator) for shape in shapes]


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float().clamp_min(MIN_LOG_PROB) - theirs.float().clamp_min(MIN_LOG_PROB)).abs().max())


def refuse_difference(difference: float) -> None:
    """Refuse an export that computes something else."""
    if not difference <= MAX_DIFFERENCE:  # also if it is NaN
        problem = f"the exported model differs from the run by {difference:.2g}, more than {MAX_DIFFERENCE:g}"
        raise ModelError("export", problem, "report it as a bug of weft, with the run file")


@torch.no_grad()
def compare(run: AnyRun, comparison: Comparison, model: Any, *, is_exact: bool = True) -> ExportCheck:
    """The largest difference of log-probabilities between a run and another model; an error if it is too large, unless the
    weights of the other are rounded (`is_exact` is false)."""
    run.model.eval()
    batches = random_tokens(comparison.vocab_size, comparison.max_length)
    difference = max(largest_difference(comparison.ours(tokens), comparison.theirs(model, tokens)) for tokens in batches)
    if is_exact:
        refuse_difference(difference)
    return ExportCheck(difference, [tuple(tokens.shape) for tokens in batches])
