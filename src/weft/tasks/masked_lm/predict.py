"""Predictions for masks, evaluation and embeddings of masked language models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.data.corpus import Corpus
from weft.errors import UsageError
from weft.metrics.lm import EvaluationSetup
from weft.metrics.masked_lm import masked_scores
from weft.runs.eval_data import EvalData
from weft.tasks import embedding
from weft.tasks.embedding import EmbeddingOutput
from weft.tasks.invalid_inputs import read_text
from weft.tasks.masked_lm.compare import item_predictions
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Progress, ProgressCallback, phase, scores_by_name
from weft.text.tokenizers import Tokenizer
from weft.text.whole_words import word_boundaries

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.masked_lm.objective import PseudoLogLikelihood

MASKS = ("[MASK]", "<mask>")
_MASK = re.compile("|".join(map(re.escape, MASKS)))
_SPACE_MASK = re.compile(" ?(?:" + "|".join(map(re.escape, MASKS)) + ")")  # if a space belongs to the token after it


class TokenPrediction(NamedTuple):
    """A token for a mask."""

    token: str
    probability: float


MaskPredictions = list[list[TokenPrediction]]  # the best tokens for each mask, best first


class MaskedLMOptions(Options):
    """Options of prediction."""

    n_best: int = 5  # tokens per mask


class MaskedLMPredictor:
    """Predicts and scores the masked tokens of texts."""

    def __init__(self, run: Run[str, MaskPredictions]) -> None:
        self.run, self.directory, self.config, self.device = run, run.directory, run.config, run.device
        self.tokenizer: Tokenizer = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `forward`, `log_probs`, `loss`, and its `encoder`."""
        return self.run.model

    @property
    def reads_lines(self) -> bool:
        """Whether each line is a separate text."""
        return bool(self.config.data.read_as == "lines")

    # ---- masks

    def problem(self, tokens: Sequence[int]) -> tuple[str, str] | None:
        """Problem and fix of a text whose masks cannot be predicted; None if they can."""
        if self.tokenizer.vocab_size not in tokens:
            return f"no {MASKS[0]} in the text", "write it where a token is missing"
        max_length = self.model.max_positions
        if max_length is not None and len(tokens) > max_length:
            return f"{len(tokens):,} tokens exceed the model's limit of {max_length}", "shorten it"
        return None

    @property
    def mask_pattern(self) -> re.Pattern[str]:
        """The pattern of a mask in a text."""
        return _SPACE_MASK if word_boundaries(self.tokenizer) == "bytes" and self.tokenizer.type != "byte" else _MASK

    def tokens(self, text: str) -> list[int]:
        """<s>, the tokens of a text with masks, </s>."""
        first, *rest = self.tokenizer.encode_batch(self.mask_pattern.split(text))
        tokens = [self.tokenizer.bos_id, *first.tolist()]
        for ids in rest:
            tokens += [self.tokenizer.vocab_size, *ids.tolist()]
        return [*tokens, self.tokenizer.eos_id]

    def predict_masks(self, tokens: list[int], n_best: int) -> MaskPredictions:
        from weft.tasks.masked_lm.objective import best_tokens

        # without special tokens and the mask
        masks = best_tokens(self.model, tokens, n_best, among=range(3, self.tokenizer.vocab_size), device=self.device)
        return [[TokenPrediction(self._token_text(token), value) for token, value in best] for best in masks]

    def _token_text(self, token: int) -> str:
        """The text of a token; the name of a token that is not a whole character."""
        text = self.tokenizer.decode([token])
        return text if text and "\ufffd" not in text else self.tokenizer.token_text(token)

    # ---- whole texts

    def token_losses(
        self,
        data: Files | None = None,
        *,
        progress: ProgressCallback | None = None,
        tokenize_progress: ProgressCallback | None = None,
    ) -> tuple[PseudoLogLikelihood, Corpus]:
        """The loss of every token of a text while only it is masked, and the tokenized text."""
        import torch

        from weft.tasks.masked_lm.objective import token_pseudo_nll

        window = self.config.data.context_length
        with TemporaryDirectory() as directory, torch.inference_mode():  # a memory map outlives its file
            corpus = EvalData(self.directory, self.config, self.tokenizer).corpus(data, Path(directory), tokenize_progress)
            return token_pseudo_nll(
                self.model, corpus, window=window, device=self.device, progress=progress, group=self.run.group
            ), corpus

    def evaluation_setup(self) -> EvaluationSetup:
        """The evaluation setup for signatures."""
        unit = "line" if self.reads_lines else "window"
        context = "masked:line" if self.reads_lines else f"masked:window/{self.config.data.context_length}"
        return EvaluationSetup(context, unit, self.tokenizer.hash)


def predict(
    run: Run[str, MaskPredictions], texts: Sequence[str], options: MaskedLMOptions, progress: Progress | None
) -> list[MaskPredictions | InvalidInput]:
    """The `n_best` most probable tokens for each [MASK] of each text, best first."""
    if options.n_best < 1:
        raise UsageError("n_best", f"must be at least 1, got {options.n_best}")
    predictor: MaskedLMPredictor = run.predictor
    predictions: list[MaskPredictions | InvalidInput] = []
    for number, value in enumerate(texts, 1):
        text = read_text(value)
        if isinstance(text, InvalidInput):
            predictions.append(text)
        else:
            tokens = predictor.tokens(text)
            problem = predictor.problem(tokens)
            predictions.append(
                predictor.predict_masks(tokens, options.n_best) if problem is None else InvalidInput("; ".join(problem))
            )
        if progress is not None:
            progress("predicting", number, len(texts))
    return predictions


def evaluate(run: Run[str, MaskPredictions], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """Pseudo-perplexity of a whole text, by line, or by window of running text."""
    from weft.tasks.masked_lm.objective import pseudo_likelihood_items

    predictor: MaskedLMPredictor = run.predictor
    likelihood, corpus = predictor.token_losses(
        data, progress=phase(progress, "evaluating"), tokenize_progress=phase(progress, "tokenizing")
    )
    items = pseudo_likelihood_items(likelihood)
    scores, tokens = masked_scores(items, predictor.evaluation_setup()), int(items.statistics["tokens"].sum())
    return Evaluation(
        scores_by_name(scores), items, partial(item_predictions, run, likelihood, items, corpus), "tokens/s filled", tokens
    )


def embed(run: Run[str, MaskPredictions], texts: Sequence[str], pooling: str, progress: Progress | None) -> EmbeddingOutput:
    return embedding.embed_texts(run, run.vocabulary, texts, pooling, max_length=run.model.max_positions, progress=progress)
