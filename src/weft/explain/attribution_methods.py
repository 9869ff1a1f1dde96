"""Attribution methods: the contribution of each input token to the log-probability of an output, in nats.

    input-x-gradient       input times gradient (Shrikumar et al. 2016)
    integrated-gradients   integrated gradients (Sundararajan et al. 2017): sums to the difference from a baseline
    occlusion              the decrease of the log-probability if a token is replaced by the baseline (Zeiler and Fergus 2014)

All methods work on the embeddings that are the input of the first layer. The baseline replaces the embedding of each text
token by that of <unk>, that of [MASK], the mean of all embeddings, or zeros; <s> and </s> keep theirs. With a character
encoder, the baseline has zero character embeddings.

Shapes: K outputs, N tokens of all inputs, R copies of the input in one batch, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UsageError
from weft.explain.hooks import differentiable, patch_activations, record_activations
from weft.explain.inputs import ExplainedOutput, ModelInput, explain_spec
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback, item_progress, no_progress, sub_progress
from weft.runs.run import AnyRun

MAX_BATCH_TOKENS, MAX_BATCH_SCORES = 1 << 13, 1 << 24  # tokens, and output log-probabilities, in one batch of copies
MIN_STEPS, MAX_STEPS = 32, 1024  # of integrated gradients, if n_steps is not set
MAX_COMPLETENESS_ERROR = 0.01  # relative error of the sum
EPSILON = 0.1  # nats: the minimum denominator of the relative error
WORD_TOKENIZERS = ("word", "whitespace", "wordpiece")  # <unk> occurs in their training data


class AttributionValues(NamedTuple):
    """The attributions of one method."""

    values: np.ndarray  # (K, N), all inputs concatenated
    log_probs: np.ndarray  # (K,): of the outputs
    method: str
    baseline: str | None  # None: the method has none
    steps: int | None
    expected_sum: np.ndarray | None  # (K,): the exact sum of the values, if the method has one


def baseline_of(run: AnyRun, options: ExplainConfig) -> str:
    """The name of the baseline: the selected one, or a vector that occurs in training."""
    spec = explain_spec(run)
    if options.baseline == "mask" and not spec.has_mask_token:
        raise UsageError("baseline", "mask is only available for masked language models", "use unk")
    if options.baseline is not None:
        return options.baseline
    if spec.has_mask_token:
        return "mask"
    return "unk" if all(tokenizer.type in WORD_TOKENIZERS for tokenizer in spec.tokenizers(run)) else "mean"


# ---- embeddings as inputs


def _replace_vectors(vectors: Tensor) -> Callable[[Any], Any]:
    """A patch that replaces the output of an embedder, or the first element of it."""
    return lambda output: vectors if isinstance(output, Tensor) else (vectors, *output[1:])


def _patch_embeddings(model_input: ModelInput, changes: dict[str, Callable[[Any], Any]]) -> AbstractContextManager[None]:
    """`patch_activations`, also if encoder and decoder share one embedding module, which is called once for each."""
    if len(model_input.sides) == 2:
        modules = dict(model_input.model.named_modules(remove_duplicate=False))
        source, target = (side.embedding for side in model_input.sides)
        if modules[source] is modules[target]:
            calls = iter([changes[source], changes[target]])  # the source is embedded first
            changes = {source: lambda vectors: next(calls)(vectors)}
    return patch_activations(model_input.model, changes)


class EmbeddingInputs:
    """The embeddings of an input and of its baseline."""

    def __init__(self, model_input: ModelInput, baseline: str, device: torch.device) -> None:
        self.model_input, self.device = model_input, device
        self.embedders = [side.embedder for side in model_input.sides]
        self.lengths = [len(side.tokens) for side in model_input.sides]
        modules: Any = dict(model_input.model.named_modules(remove_duplicate=False))
        changes: dict[str, Callable[[Any], Any]] = {}
        for side in model_input.sides:
            changes[side.embedding] = self._to_baseline(modules[side.embedding].weight.detach(), baseline, side.text_mask)
            if f"{side.embedder}.char_encoder" in modules:
                changes[f"{side.embedder}.char_encoder"] = torch.zeros_like
        with torch.no_grad():
            self.inputs = self._embed()  # (1, N, D) for each side
            with _patch_embeddings(model_input, changes):
                self.baselines = self._embed()  # (1, N, D) for each side

    def _to_baseline(self, weight: Tensor, baseline: str, text_mask: list[bool]) -> Callable[[Tensor], Tensor]:
        """A patch that replaces the embeddings of text tokens by the baseline."""
        rows = {"unk": weight[0], "mask": weight[-1], "mean": weight.mean(0), "zero": torch.zeros_like(weight[0])}
        mask = torch.tensor(text_mask, device=self.device)[:, None]
        return lambda vectors: torch.where(mask, rows[baseline], vectors)

    def _embed(self) -> list[Tensor]:
        """The outputs of the embedders in a forward pass."""
        with record_activations(self.model_input.model, self.embedders) as calls:
            self.model_input.log_probs(torch.zeros(1, dtype=torch.long, device=self.device))
        outputs = {call.name: call.output if isinstance(call.output, Tensor) else call.output[0] for call in calls}
        return [outputs[embedder].detach() for embedder in self.embedders]

    def log_probs(self, vectors: Sequence[Tensor], outputs: Sequence[ExplainedOutput]) -> Tensor:
        """(R,): the log-probability of one output per copy, with `vectors`, (R, N, D) for each side, as embeddings."""
        changes = {name: _replace_vectors(part) for name, part in zip(self.embedders, vectors, strict=True)}
        positions = torch.tensor([output.position for output in outputs], device=self.device)
        targets = torch.tensor([output.target for output in outputs], device=self.device)
        with patch_activations(self.model_input.model, changes):
            return self.model_input.log_probs(positions).gather(1, targets[:, None])[:, 0]

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.inputs, self.baselines, strict=True))

    def interpolate(self, fractions: Tensor) -> list[Tensor]:
        """Points between the baseline (fraction 0) and the input (1): (R, N, D) for each side, from fractions (R,)."""
        return [baseline + fractions[:, None, None].to(x.dtype) * (x - baseline) for x, baseline in self._pairs()]

    def occlude(self, tokens: Sequence[int]) -> list[Tensor]:
        """R copies of the input, each with one token replaced by its baseline: (R, N, D) for each side."""
        copies, offset = list[Tensor](), 0
        for (x, baseline), length in zip(self._pairs(), self.lengths, strict=True):
            occluded = torch.tensor(tokens, device=self.device)[:, None] - offset == torch.arange(length, device=self.device)
            copies.append(torch.where(occluded[..., None], baseline, x))
            offset += length
        return copies


# ---- methods


def _gradients(embeddings: EmbeddingInputs, vectors: list[Tensor], outputs: Sequence[ExplainedOutput]) -> list[Tensor]:
    """d log-probability / d vectors, (R, N, D) for each side; each copy has its own output."""
    vectors = [part.detach().requires_grad_() for part in vectors]
    with differentiable():
        log_prob = embeddings.log_probs(vectors, outputs).sum()
    gradients = torch.autograd.grad(log_prob, vectors, allow_unused=True)
    return [torch.zeros_like(part) if grad is None else grad for part, grad in zip(vectors, gradients, strict=True)]


def _sum_over_dim(sides: Sequence[Tensor]) -> np.ndarray:
    """(R, N, D) for each side -> (R, N) for all sides."""
    return torch.cat([side.double().sum(-1) for side in sides], dim=1).cpu().numpy()


def input_x_gradient(embeddings: EmbeddingInputs, outputs: Sequence[ExplainedOutput]) -> np.ndarray:
    """(K, N): the product of input and gradient for each output."""
    vectors = embeddings.interpolate(torch.ones(len(outputs), device=embeddings.device))
    gradients = _gradients(embeddings, vectors, outputs)
    return _sum_over_dim([part * grad for part, grad in zip(vectors, gradients, strict=True)])


def integrated_gradients(
    embeddings: EmbeddingInputs,
    output: ExplainedOutput,
    steps: int,
    *,
    batch_size: int,
    progress: ProgressCallback = no_progress,
) -> np.ndarray:
    """(N,): the mean gradient on the line from baseline to input (Gauss-Legendre quadrature), times their difference."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on [-1, 1]
    means = [torch.zeros_like(x, dtype=torch.float64) for x in embeddings.inputs]
    for start in range(0, steps, batch_size):
        batch = slice(start, start + batch_size)
        fractions = torch.from_numpy((1 + nodes[batch]) / 2).to(embeddings.device)
        weight = torch.from_numpy(weights[batch] / 2).to(embeddings.device)[:, None, None]
        gradients = _gradients(embeddings, embeddings.interpolate(fractions), [output] * len(fractions))
        for mean, grad in zip(means, gradients, strict=True):
            mean += (weight * grad.double()).sum(0)
        progress(min(1.0, (start + batch_size) / steps), "")
    differences = [x - baseline for x, baseline in zip(embeddings.inputs, embeddings.baselines, strict=True)]
    return np.asarray(_sum_over_dim([mean * part for mean, part in zip(means, differences, strict=True)])[0])


@torch.no_grad()
def occlusion(
    embeddings: EmbeddingInputs, output: ExplainedOutput, *, batch_size: int, progress: ProgressCallback = no_progress
) -> np.ndarray:
    """(N,): the decrease of the log-probability without each token."""
    tokens = list(range(sum(embeddings.lengths)))
    log_prob = float(embeddings.log_probs(embeddings.inputs, [output])[0])
    occluded = list[Tensor]()
    for start in range(0, len(tokens), batch_size):
        batch = tokens[start : start + batch_size]
        occluded.append(embeddings.log_probs(embeddings.occlude(batch), [output] * len(batch)).double().cpu())
        progress((start + len(batch)) / len(tokens), "")
    return np.asarray(log_prob - torch.cat(occluded).numpy())


def completeness_error(values: np.ndarray, expected_sum: float) -> float:
    """The relative error of the sum of the values."""
    return abs(float(values.sum()) - expected_sum) / max(abs(expected_sum), EPSILON)


def _integrate_until_complete(
    embeddings: EmbeddingInputs,
    output: ExplainedOutput,
    expected_sum: float,
    n_steps: int | None,
    *,
    batch_size: int,
    progress: ProgressCallback,
) -> tuple[np.ndarray, int]:
    """Integrated gradients and their number of steps: `n_steps`, or doubled until the values are complete."""
    steps, steps_done = MIN_STEPS if n_steps is None else n_steps, 0
    while True:
        # an estimate: twice as many steps may follow
        pass_progress = sub_progress(progress, steps_done / (steps_done + steps), 1.0)
        values = integrated_gradients(embeddings, output, steps, batch_size=batch_size, progress=pass_progress)
        is_complete = completeness_error(values, expected_sum) <= MAX_COMPLETENESS_ERROR
        if n_steps is not None or steps >= MAX_STEPS or is_complete:
            return values, steps
        steps, steps_done = 2 * steps, steps_done + steps


def _output_log_probs(
    embeddings: EmbeddingInputs, inputs: Sequence[Tensor], outputs: Sequence[ExplainedOutput], progress: ProgressCallback
) -> np.ndarray:
    """The log-probability of each output. There may be many, such as tags, and the callback may stop the computation."""
    values = list[float]()
    for output in outputs:
        progress(0.0, "")
        values.append(float(embeddings.log_probs(inputs, [output])[0]))
    return np.array(values)


def attribute(
    run: AnyRun,
    model_input: ModelInput,
    outputs: Sequence[ExplainedOutput],
    options: ExplainConfig,
    progress: ProgressCallback = no_progress,
) -> AttributionValues:
    """The contribution of each token to each output."""
    method, baseline = options.method or "integrated-gradients", baseline_of(run, options)
    embeddings = EmbeddingInputs(model_input, baseline, run.device)
    with torch.no_grad():
        log_probs = _output_log_probs(embeddings, embeddings.inputs, outputs, progress)
        expected = log_probs - _output_log_probs(embeddings, embeddings.baselines, outputs, progress)
        num_classes = model_input.log_probs(torch.zeros(1, dtype=torch.long, device=run.device)).size(1)
    batch_size = max(1, min(MAX_BATCH_TOKENS // sum(embeddings.lengths), MAX_BATCH_SCORES // num_classes))
    rows, max_steps = list[np.ndarray](), 0
    for i, output in enumerate(outputs):
        output_progress = item_progress(progress, i, len(outputs), "outputs")
        match method:
            case "integrated-gradients":
                values, steps = _integrate_until_complete(
                    embeddings, output, float(expected[i]), options.n_steps, batch_size=batch_size, progress=output_progress
                )
                max_steps = max(max_steps, steps)
            case "occlusion":
                values = occlusion(embeddings, output, batch_size=batch_size, progress=output_progress)
            case _:
                values = input_x_gradient(embeddings, [output])[0]
        rows.append(values)
    return AttributionValues(
        np.stack(rows),
        log_probs,
        method,
        None if method == "input-x-gradient" else baseline,
        max_steps or None,
        expected if method == "integrated-gradients" else None,
    )
