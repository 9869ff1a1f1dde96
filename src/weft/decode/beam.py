"""Batched beam search with cached states, for any incremental model.

A hypothesis is finished by the EOS token, by `max_new_tokens`, or by the `finished` callback. Its score is

    score = sum of processed log-probabilities / length ** length_penalty

where the length counts all generated tokens including EOS, as in Hugging Face and CTranslate2: a penalty of 0 ranks by the
sum, 1 by the mean per token. EOS is considered only among the `beam_size` best candidates of a step, as usual; considering
every possible EOS would favor short outputs. A beam size of 1 is greedy search: it takes the best token (of equally probable
ones, the first) and stops at the first EOS, whatever the length penalty.

A search ends when no active hypothesis can become better than the n best finished ones. With a length penalty that bound is
loose: a hypothesis could still gain by growing to `max_new_tokens`. `patience` ends a search when beam_size * patience
hypotheses have finished, if that is earlier, as in CTranslate2 (Kasai et al. 2024).

`beam_step` has the computations of a step, `beam_engine` the sentences that enter and leave the batch.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from weft.decode.beam_engine import BeamEngine, BeamRequest, Progress
from weft.decode.beam_step import BeamEvent, BeamOptions, Hypothesis
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import LogitsProcessor

__all__ = ["BeamEngine", "BeamEvent", "BeamOptions", "BeamRequest", "Hypothesis", "beam_search"]
S = TypeVar("S")


def beam_search(
    model: IncrementalModel[S],
    prompt: Tensor,
    *,
    options: BeamOptions,
    token_mask: Tensor | None = None,
    state: S | None = None,
    processor: LogitsProcessor | None = None,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each row of `prompt` (B, T), right-padded where token_mask is False, best first.

    A row has fewer than `options.n_best` hypotheses if no more exist, but at least one: if no continuation is possible, the
    unfinished tokens up to that point. `state` is the initial state of the rows, such as that of their sources; `processor`
    changes the log-probabilities that the search ranks by.
    """
    batch_size = prompt.size(0)
    lengths = [prompt.size(1)] * batch_size if token_mask is None else token_mask.sum(1).tolist()
    engine = BeamEngine(model, prompt.device)
    engine.admit(
        [
            BeamRequest(tokens[:length], options, processor=processor)
            for tokens, length in zip(prompt.tolist(), lengths, strict=True)
        ],
        state=state,
    )
    results: list[list[Hypothesis]] = [[] for _ in range(batch_size)]
    while engine.running:
        for row, hypotheses in engine.step(progress):
            results[row] = hypotheses
    return results
