"""The language models of a run: one, or the members of a mixture. Each is scored with its own context policy and device.

Shapes: M models, N tokens, R rows, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus import Corpus
from weft.tasks.lm.contexts import Context, resolve_context
from weft.tasks.lm.scoring import nll_function, surprisal, token_nll
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    import torch

    from weft.runs.run import Run


class Member:
    """One language model, with or without a cache."""

    def __init__(self, run: Run[str, None]) -> None:
        self.run = run

    @property
    def device(self) -> torch.device | None:
        """The device of a neural model; None for an n-gram model, which computes with arrays."""
        return self.run.device if self.run.config.preset.estimator.by_steps else None

    def context(self, text: str | None) -> Context:
        """The context policy `text` for this run; None: `full`."""
        return resolve_context(self.run.config, text)

    def row_nll(self, tokens: NDArray[np.int64], progress: Callable[[int], None] | None) -> NDArray[np.float32]:
        """The negative log-likelihood of every token after the first in rows of separate texts, (R, T - 1)."""
        with _inference(self.device):
            return token_nll(nll_function(self.run.model, self.device), tokens, None, progress)[0]

    def corpus_nll(self, corpus: Corpus, context: str | None, progress: ProgressCallback | None) -> NDArray[np.float32]:
        """The negative log-likelihood of every token of a text, (N,). A cache follows the text in its order."""
        with _inference(self.device):
            if self.run.cache is None:
                policy, group = self.context(context), self.run.group
                return surprisal(self.run.model, corpus, policy, device=self.device, progress=progress, group=group)
            from weft.tasks.lm.cache import cached_nll, hidden_states

            states = hidden_states(self.run, corpus, self.context(context), progress)
            return cached_nll(states, corpus, self.run.cache)


def _inference(device: torch.device | None) -> AbstractContextManager[Any]:
    """Inference mode of torch, for a neural model."""
    if device is None:
        return nullcontext()
    import torch

    return torch.inference_mode()


def mixture_nll(nll: Sequence[NDArray[np.float32]], weights: Sequence[float] | None) -> NDArray[np.float32]:
    """-log sum_m weight_m P_m of each token, in the shape of each of the M arrays `nll`; equal weights if `weights` is None."""
    if len(nll) == 1:
        return nll[0]
    shares = np.full(len(nll), 1 / len(nll)) if weights is None else np.array(weights)
    with np.errstate(divide="ignore"):  # a weight of 0
        terms = [np.log(weight) - part.astype(np.float64) for weight, part in zip(shares, nll, strict=True)]
    mixed: NDArray[np.float32] = (-np.logaddexp.reduce(terms)).astype(np.float32)
    return mixed
