"""Attribution methods: the contribution of each input token to the log-probability of an output, in nats.

    input-x-gradient       input times gradient (Shrikumar et al. 2016)
    integrated-gradients   integrated gradients (Sundararajan et al. 2017): they sum to the difference from a baseline
    occlusion              the loss of log-probability if a token is replaced by the baseline (Zeiler and Fergus 2014)

All methods work on the embeddings that are the input of the first layer. The baseline is another vector for each token of a
text: that of <unk>, of [MASK], the mean of all embeddings, or zeros; <s> and </s> stay. With a character encoder, the
baseline has zero character embeddings.

Shapes: K outputs, N tokens of all inputs, R copies read at once, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UsageError
from weft.explain.hooks import differentiable, patch_activations, record_activations
from weft.explain.inputs import ExplainedOutput, ModelInput, explaining
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback, item_progress, no_progress, sub_progress
from weft.runs.run import AnyRun

MAX_POSITIONS, MAX_SCORES = 1 << 13, 1 << 24  # tokens, and values of the distributions, of copies read at once
MIN_STEPS, MAX_STEPS = 32, 1024  # of integrated gradients, if n_steps is not set
COMPLETE = 0.01  # maximum relative error of the sum
EPSILON = 0.1  # nats: the minimum denominator of the relative error
WORD_TOKENIZERS = ("word", "whitespace", "wordpiece")  # <unk> occurs in their training data


class AttributionValues(NamedTuple):
    """The attributions of one method."""

    values: np.ndarray  # (K, N), all inputs concatenated
    output: np.ndarray  # (K,): the log-probability of each output
    method: str
    baseline: str | None  # None: the method has none
    steps: int | None
    added: np.ndarray | None  # (K,): what the values should sum to


def baseline_of(run: AnyRun, options: ExplainConfig) -> str:
    """The name of the baseline: the selected one, or one that occurs in training."""
    explain = explaining(run)
    if options.baseline == "mask" and not explain.has_mask_token:
        raise UsageError("baseline", "mask is only available for masked language models", "use unk")
    if options.baseline is not None:
        return options.baseline
    if explain.has_mask_token:
        return "mask"
    return "unk" if all(tokenizer.type in WORD_TOKENIZERS for tokenizer in explain.tokenizers(run)) else "mean"


class EmbeddingInputs:
    """The embeddings of an input and of its baseline."""

    def __init__(self, reading: ModelInput, baseline: str, device: torch.device) -> None:
        self.reading, self.device = reading, device
        self.embedders = [side.embedder for side in reading.sides]
        self.sizes = [len(side.tokens) for side in reading.sides]
        parts: Any = dict(reading.model.named_modules(remove_duplicate=False))
        changes: dict[str, Callable[[Any], Any]] = {}
        for side in reading.sides:
            changes[side.config] = self._blank(parts[side.config].weight.detach(), baseline, side.of_text)
            if f"{side.embedder}.char_encoder" in parts:
                changes[f"{side.embedder}.char_encoder"] = torch.zeros_like
        with torch.no_grad():
            self.own = self._seen()
            with _replaced_in_turn(reading, changes):
                self.blank = self._seen()

    def _blank(self, weight: Tensor, baseline: str, of_text: list[bool]) -> Callable[[Tensor], Tensor]:
        """A function that replaces the embeddings of the text by those of the baseline."""
        rows = {"unk": weight[0], "mask": weight[-1], "mean": weight.mean(0), "zero": torch.zeros_like(weight[0])}
        kept = torch.tensor(of_text, device=self.device)[:, None]
        return lambda vectors: torch.where(kept, rows[baseline], vectors)

    def _seen(self) -> list[Tensor]:
        with record_activations(self.reading.model, self.embedders) as seen:
            self.reading.log_probs(torch.zeros(1, dtype=torch.long, device=self.device))
        found = {one.name: one.output if isinstance(one.output, Tensor) else one.output[0] for one in seen}
        return [found[front].detach() for front in self.embedders]

    def say(self, vectors: Sequence[Tensor], questions: Sequence[ExplainedOutput]) -> Tensor:
        """The log-probability of a question for each copy, (R,), as if these vectors (R, N, D) had been read."""
        new = dict(zip(self.embedders, vectors, strict=True))
        changes = {front: _putting(new[front]) for front in self.embedders}
        places = torch.tensor([question.place for question in questions], device=self.device)
        choices = torch.tensor([question.choice for question in questions], device=self.device)
        with patch_activations(self.reading.model, changes):
            return self.reading.log_probs(places).gather(1, choices[:, None])[:, 0]

    def between(self, fractions: Tensor) -> list[Tensor]:
        """Interpolations from the baseline (fraction 0) to the input (1): (R, N, D) for each side and fractions (R,)."""
        return [blank + fractions[:, None, None].to(own.dtype) * (own - blank) for own, blank in self._pairs()]

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.own, self.blank, strict=True))

    def without(self, tokens: Sequence[int]) -> list[Tensor]:
        """The input, in each copy with one token as the baseline has it: (R, N, D) of each side."""
        found, before = list[Tensor](), 0
        for (own, blank), size in zip(self._pairs(), self.sizes, strict=True):
            here = torch.tensor(tokens, device=self.device)[:, None] - before == torch.arange(size, device=self.device)
            found.append(torch.where(here[..., None], blank, own))
            before += size
        return found


def _putting(vectors: Tensor) -> Callable[[Any], Any]:
    return lambda output: vectors if isinstance(output, Tensor) else (vectors, *output[1:])


def _replaced_in_turn(reading: ModelInput, changes: dict[str, Callable[[Any], Any]]) -> Any:
    """Like `patch_activations`, if encoder and decoder share an embedding: its outputs are told apart by length or order."""
    if len(reading.sides) < 2:
        return patch_activations(reading.model, changes)
    parts: Any = dict(reading.model.named_modules(remove_duplicate=False))
    first, second = (side.config for side in reading.sides)
    if parts[first] is not parts[second]:
        return patch_activations(reading.model, changes)
    calls = iter([changes[first], changes[second]])  # the source is read first
    return patch_activations(reading.model, {first: lambda vectors: next(calls)(vectors)})


def _copies_at_once(vectors: EmbeddingInputs, choices: int) -> int:
    return max(1, min(MAX_POSITIONS // sum(vectors.sizes), MAX_SCORES // choices))


def _gradients(vectors: EmbeddingInputs, inputs: list[Tensor], questions: Sequence[ExplainedOutput]) -> list[Tensor]:
    """d log-probability / d vectors, (R, N, D) of each side; a row is a copy of its own."""
    inputs = [part.detach().requires_grad_() for part in inputs]
    with differentiable():
        said = vectors.say(inputs, questions).sum()
    found = torch.autograd.grad(said, inputs, allow_unused=True)
    return [torch.zeros_like(part) if slope is None else slope for part, slope in zip(inputs, found, strict=True)]


def _summed(parts: Sequence[Tensor]) -> np.ndarray:
    """(R, N, D) of each side -> (R, N) of all."""
    return torch.cat([part.double().sum(-1) for part in parts], dim=1).cpu().numpy()


def gradient_times_input(vectors: EmbeddingInputs, questions: Sequence[ExplainedOutput]) -> np.ndarray:
    ones = torch.ones(len(questions), device=vectors.device)
    inputs = vectors.between(ones)
    slopes = _gradients(vectors, inputs, questions)
    return _summed([part * slope for part, slope in zip(inputs, slopes, strict=True)])


def integrated_gradients(
    vectors: EmbeddingInputs, question: ExplainedOutput, steps: int, *, rows: int, progress: ProgressCallback = no_progress
) -> np.ndarray:
    """(N,): the mean gradient on the way from the baseline, by Gauss and Legendre, times the way."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = [torch.zeros_like(own, dtype=torch.float64) for own in vectors.own]
    for low in range(0, steps, rows):
        fractions = torch.from_numpy((1 + nodes[low : low + rows]) / 2).to(vectors.device)
        fraction = torch.from_numpy(weights[low : low + rows] / 2).to(vectors.device)[:, None, None]
        slopes = _gradients(vectors, vectors.between(fractions), [question] * len(fractions))
        for part, slope in zip(total, slopes, strict=True):
            part += (fraction * slope.double()).sum(0)
        progress(min(1.0, (low + rows) / steps), "")
    ways = [own - blank for own, blank in zip(vectors.own, vectors.blank, strict=True)]
    return np.asarray(_summed([part * way for part, way in zip(total, ways, strict=True)])[0])


@torch.no_grad()
def occlusion(
    vectors: EmbeddingInputs, question: ExplainedOutput, *, rows: int, progress: ProgressCallback = no_progress
) -> np.ndarray:
    """(N,): the decrease of the log-probability without each token."""
    tokens = list(range(sum(vectors.sizes)))
    whole = float(vectors.say(vectors.own, [question])[0])
    found = list[Tensor]()
    for low in range(0, len(tokens), rows):
        part = tokens[low : low + rows]
        found.append(vectors.say(vectors.without(part), [question] * len(part)).double().cpu())
        progress((low + len(part)) / len(tokens), "")
    return np.asarray(whole - torch.cat(found).numpy())


def completeness_error(values: np.ndarray, added: float) -> float:
    """The relative error of the sum of the values."""
    return abs(float(values.sum()) - added) / max(abs(added), EPSILON)


def _completed(
    vectors: EmbeddingInputs,
    question: ExplainedOutput,
    added: float,
    steps: int | None,
    *,
    rows: int,
    progress: ProgressCallback,
) -> tuple[np.ndarray, int]:
    """Integrated gradients with `steps` steps, or with doubled steps until they are complete."""
    number, before = MIN_STEPS if steps is None else steps, 0
    while True:
        # an estimate: twice as many steps may follow
        own = sub_progress(progress, before / (before + number), 1.0)
        found = integrated_gradients(vectors, question, number, rows=rows, progress=own)
        if steps is not None or number >= MAX_STEPS or completeness_error(found, added) <= COMPLETE:
            return found, number
        number, before = 2 * number, before + number


def attribute(
    run: AnyRun,
    reading: ModelInput,
    questions: Sequence[ExplainedOutput],
    options: ExplainConfig,
    progress: ProgressCallback = no_progress,
) -> AttributionValues:
    """The contribution of each token to each output."""
    method, baseline = options.method or "integrated-gradients", baseline_of(run, options)
    vectors = EmbeddingInputs(reading, baseline, run.device)
    with torch.no_grad():
        said = np.array([float(vectors.say(vectors.own, [question])[0]) for question in questions])
        added = said - [float(vectors.say(vectors.blank, [question])[0]) for question in questions]
        rows = _copies_at_once(vectors, reading.log_probs(torch.zeros(1, dtype=torch.long, device=run.device)).size(1))
    values, steps = list[np.ndarray](), 0
    for at, question in enumerate(questions):
        own = item_progress(progress, at, len(questions), "outputs")
        match method:
            case "integrated-gradients":
                found, number = _completed(vectors, question, float(added[at]), options.n_steps, rows=rows, progress=own)
                steps = max(steps, number)
            case "occlusion":
                found = occlusion(vectors, question, rows=rows, progress=own)
            case _:
                found = gradient_times_input(vectors, [question])[0]
        values.append(found)
    kept = None if method == "input-x-gradient" else baseline
    return AttributionValues(
        np.stack(values), said, method, kept, steps or None, added if method == "integrated-gradients" else None
    )
