"""The neural cache over a whole text, and the choice of its options on validation data.

Shapes: N predicted tokens of the corpus, D hidden size, R rows, T positions.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.corpus import Corpus
from weft.decode.cache import cache_log_probs, interpolate
from weft.decode.cache_options import Cache, CacheConfig
from weft.errors import UsageError
from weft.resources import format_bytes, free_memory
from weft.runs.eval_data import EvalData
from weft.tasks.lm.contexts import Context, check_positions, default_context
from weft.tasks.lm.mixture import mixture_weights
from weft.tasks.lm.scoring import NLLFunction, per_token
from weft.tasks.spec import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.run import Run

SIZES = (100, 500, 2000)
# theta times the mean squared norm of the hidden states: their scale depends on the architecture and its normalization
SCALED_THETAS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
MAX_FIT_TOKENS = 1 << 16  # validation tokens to choose by


class HiddenStates(NamedTuple):
    """The model's part of a text."""

    nll: Tensor  # (N,): the negative log-likelihood of each token without a cache
    hidden: Tensor  # (N, D): the hidden state that predicts it


def _hidden_function(network: Any, device: torch.device) -> NLLFunction:
    """Scores rows of tokens, with the hidden state after the negative log-likelihood: (R, T, 1 + D)."""

    def score_rows(rows: NDArray[np.int64], state: Any) -> tuple[NDArray[np.float32], Any]:
        tokens = torch.from_numpy(rows).to(device)
        hidden, state = network(tokens[:, :-1], state)
        nll = network.head.loss(hidden, tokens[:, 1:])
        result: NDArray[np.float32] = torch.cat([nll[..., None].float(), hidden.float()], -1).cpu().numpy()
        return result, state

    return score_rows


def hidden_states(run: Run[str, None], corpus: Corpus, context: Context, progress: ProgressCallback | None) -> HiddenStates:
    """The hidden states of a whole text, in its order."""
    network: Any = run.network
    check_positions(network.max_positions, corpus, context)
    needed, available = len(corpus.tokens) * (network.head.weight.size(1) + 1) * 4, free_memory()
    if needed > available:
        problem = f"the hidden states of {len(corpus.tokens):,} tokens need {format_bytes(needed)}"
        raise UsageError("cache", f"{problem} of memory, {format_bytes(available)} are free", "evaluate a part of the text")
    values = torch.from_numpy(per_token(_hidden_function(network, run.device), corpus, context, progress)).to(run.device)
    return HiddenStates(values[:, 0], values[:, 1:])


def _token_ids(corpus: Corpus, device: torch.device) -> Tensor:
    """int64 (1, N)."""
    return torch.from_numpy(np.asarray(corpus.tokens).astype(np.int64)).to(device)[None]


def cached_nll(states: HiddenStates, corpus: Corpus, cache: Cache) -> NDArray[np.float32]:
    """The negative log-likelihood of every token of a text with a cache, (N,)."""
    tokens = _token_ids(corpus, states.hidden.device)
    cached = cache_log_probs(states.hidden[None], tokens, 0, thetas=[cache.theta], sizes=[cache.size])[0, 0, 0]
    result: NDArray[np.float32] = -interpolate(-states.nll, cached, cache.weight).cpu().numpy()
    return result


def _beginning(corpus: Corpus, max_tokens: int) -> Corpus:
    """The first tokens of a corpus, in whole lines if lines are separate sequences."""
    if corpus.starts is None:
        return replace(corpus, tokens=corpus.tokens[:max_tokens])
    lines = max(1, int(np.searchsorted(corpus.starts, max_tokens, side="right")) - 1)
    return replace(corpus, tokens=corpus.tokens[: int(corpus.starts[lines])], starts=corpus.starts[: lines + 1])


def _thetas(hidden: Tensor) -> list[float]:
    scale = float(hidden.square().sum(1).mean())
    return [float(f"{theta / scale:.2g}") for theta in SCALED_THETAS]


def _weight(log_probs: NDArray[np.float64], config: CacheConfig) -> float:
    """The weight of the cache, given the log-probabilities (2, N) of the model and of the cache."""
    return float(f"{mixture_weights(log_probs)[1]:.3g}") if config.weight is None else config.weight


def choose_cache(states: HiddenStates, tokens: Tensor, config: CacheConfig) -> Cache:
    """The options with the highest likelihood of tokens (1, N); those of `config` that are set stay as they are."""
    thetas = _thetas(states.hidden) if config.theta is None else [config.theta]
    sizes = SIZES if config.size is None else (config.size,)
    cached = cache_log_probs(states.hidden[None], tokens, 0, thetas=thetas, sizes=sizes)[:, :, 0].double().cpu().numpy()
    model = -states.nll.double().cpu().numpy()
    has_entries = ~np.isnan(cached[0, 0])
    choices = list[tuple[float, Cache]]()
    for (row, theta), (column, size) in product(enumerate(thetas), enumerate(sizes)):
        pair = np.stack([model, cached[row, column]])[:, has_entries]
        cache = Cache(size, theta, _weight(pair, config))
        with np.errstate(divide="ignore"):
            log_weights = np.log([[1 - cache.weight], [cache.weight]])
        choices.append((float(np.logaddexp.reduce(pair + log_weights).sum()), cache))
    # of equal likelihoods the first, the smallest cache
    return max(choices, key=lambda choice: choice[0])[1]


def fit_cache(run: Run[str, None], config: CacheConfig) -> Cache:
    """The options of `config`, with those that are not set chosen on the validation data of the run."""
    if run.network is None:
        raise UsageError("cache", f"{run.path} has no hidden states", "use a neural model")
    if config.size is not None and config.theta is not None and config.weight is not None:
        return Cache(config.size, config.theta, config.weight)
    with TemporaryDirectory() as directory, torch.inference_mode():
        corpus = EvalData(run.directory, run.config, run.vocabulary).valid_corpus(Path(directory))
        corpus = _beginning(corpus, MAX_FIT_TOKENS)
        states = hidden_states(run, corpus, default_context(run.config), None)
        return choose_cache(states, _token_ids(corpus, run.device), config)
