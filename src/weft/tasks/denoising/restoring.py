"""Restores corrupted texts with one run or an ensemble, and evaluates restored texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.noise import Corrupted, fill_sentinels, join_texts
from weft.decode.predict import PredictionRequest, Search
from weft.decode.predict_options import TRUNCATION, PredictionConfig
from weft.decode.prediction import Prediction
from weft.metrics.denoising import RESTORATION, TARGETS
from weft.metrics.lm import EvaluationSetup, signature
from weft.metrics.metric import scores
from weft.metrics.seq2seq import Seq2SeqSetup, seq2seq_items, signatures
from weft.runs.eval_data import eval_source
from weft.tasks.denoising.batching import SEED, NoisyTexts, with_specials
from weft.tasks.denoising.compare import item_predictions
from weft.tasks.denoising.corruption import Corrupter
from weft.tasks.denoising.objective import target_statistics
from weft.tasks.encoder_decoder.predictor import EncoderDecoderPredictor
from weft.tasks.prepare import tokenize
from weft.tasks.spec import Evaluation, Files, ProgressCallback, scores_by_name
from weft.text.noise_tokenizer import NoiseTokenizer
from weft.text.tokenizer_pair import TokenizerPair
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.run import Run


def noise_tokenizer(run: Run[str, Prediction]) -> NoiseTokenizer:
    return NoiseTokenizer(run.vocabulary, run.config.data.num_sentinels or 0)


def _tokenizers(run: Run[str, Prediction]) -> TokenizerPair:
    tokenizer = noise_tokenizer(run)
    return TokenizerPair(tokenizer, tokenizer)


class DenoisingPredictor(EncoderDecoderPredictor):
    """One run or an ensemble of runs with the same tokenizer and noise tokens."""

    def __init__(self, run: Run[str, Prediction]) -> None:
        super().__init__(run, _tokenizers)
        self.plain: Tokenizer = run.vocabulary  # without noise tokens
        self.corrupter = Corrupter(run.config.data, self.plain)

    @property
    def has_sentinels(self) -> bool:
        return bool(self.config.data.num_sentinels)

    @property
    def suppressed_tokens(self) -> Sequence[int]:
        """A restored text has no mask; sentinels name the spans of the target."""
        return () if self.has_sentinels else (self.plain.vocab_size,)

    def invalid_texts(self, lines: Sequence[str], *, truncate: bool) -> dict[int, str]:
        """Texts that are too long to be corrupted, by number from 0, with the problem."""
        max_length: int = self.config.data.max_length
        lengths = self.plain.encode_concatenated(lines)[1] + max_length - self.corrupter.max_tokens
        return {} if truncate else {
            int(number): f"{lengths[number]:,} tokens exceed the model's limit of {max_length}; shorten it{TRUNCATION}"
            for number in np.flatnonzero(lengths > max_length)
        }  # fmt: skip

    # ---- restoring

    def prepare(self, lines: Sequence[str], prefixes: Sequence[str], numbers: Sequence[int]) -> Search:
        """The restored texts of each line with masks or sentinels."""
        prepared, sources = super().prepare(lines, prefixes, numbers), self.members[0].sources(lines)

        def finish(found: list[list[Prediction]]) -> list[list[Prediction]]:
            return [
                [self._restored(source, output) for output in outputs]
                for source, outputs in zip(sources, prepared.finish(found), strict=True)
            ]

        return Search(prepared.request, finish)

    def _restored(self, source: np.ndarray, output: Prediction) -> Prediction:
        """The prediction with the whole text: the target of span corruption has only the spans."""
        if not self.has_sentinels or not output.token_ids:
            return output
        target = [*output.prefix, *output.token_ids]
        return output._replace(text=self.plain.decode(fill_sentinels(source.tolist(), target, self.plain.vocab_size)))

    def corrupt(self, lines: Sequence[str], numbers: Sequence[int], *, seed: int) -> Corrupted:
        """The lines, truncated to the limit of the model, with the noise for these line numbers, from 1."""
        tokens = [ids[: self.corrupter.max_tokens] for ids in self.plain.encode_batch(lines)]
        return self.corrupter.corrupt(join_texts(tokens), np.asarray(numbers, np.int64) - 1, seed=seed, epoch=0)

    def predict_corrupted(
        self, lines: Sequence[str], numbers: Sequence[int], options: PredictionConfig, progress: ProgressCallback | None
    ) -> list[Prediction]:
        """The best restored text of each line after noise was added, with its alternatives, corrupted text and target."""
        corrupted = self.corrupt(lines, numbers, seed=options.seed)
        outputs = self.restore(corrupted, options, numbers, progress)
        decode = self.tokenizer.target.decode
        shown = zip(map(decode, corrupted.source.split()), map(decode, corrupted.target.split()), strict=True)
        return [
            best._replace(alternatives=tuple(rest), source=source, target=target)
            for (best, *rest), (source, target) in zip(outputs, shown, strict=True)
        ]

    def restore(
        self, corrupted: Corrupted, options: PredictionConfig, numbers: Sequence[int], progress: ProgressCallback | None
    ) -> list[list[Prediction]]:
        """The restored texts of corrupted tokens."""
        start = self.plain.start_tokens
        sources = with_specials(start.source, corrupted.source)

        def encode(rows: Sequence[int]) -> Any:
            return self.encode_tokens([[sources[row] for row in rows]] * len(self.members))

        request = PredictionRequest(
            self.model,
            self.tokenizer.target,
            encode,
            list(map(len, sources)),
            [[]] * len(sources),
            self.device,
            start.target,
            indices=[number - 1 for number in numbers],
            suppressed_tokens=self.suppressed_tokens,
            sources=[(source,) for source in sources],
            group=self.run.group,
        )

        def finish(found: list[list[Prediction]]) -> list[list[Prediction]]:
            pairs = zip(sources, found, strict=True)
            return [[self._restored(source, output) for output in outputs] for source, outputs in pairs]

        return self.search(Search(request, finish), options, progress)

    # ---- evaluating

    def noisy_texts(self, data: Files | None) -> NoisyTexts:
        """The tokens of `data`, or of the run's test data; long texts are refused or truncated."""
        dataset = eval_source(self.directory, self.config, data)
        with TemporaryDirectory() as directory:  # a memory map outlives its file
            (corpus,) = tokenize(self.run.spec, self.config, self.plain, dataset, Path(directory))
        return NoisyTexts(corpus, self.corrupter)

    def evaluate(self, data: Files | None, options: PredictionConfig, progress: ProgressCallback | None) -> Evaluation:
        """Loss and token accuracy of the targets, and scores of the restored texts."""
        noisy = self.noisy_texts(data)
        members = np.arange(noisy.corpus.lines)
        # what the tokenizer restores: it may drop spaces, and long texts were truncated
        lines, corrupted = list(map(self.plain.decode, noisy.texts(members).split())), noisy.corrupted(members)
        targets = target_statistics(self.model, noisy, self.device, group=self.run.group) if self.has_log_probs else None
        outputs = [ranked[0].text for ranked in self.restore(corrupted, options, range(1, 1 + len(lines)), progress)]
        items = seq2seq_items(outputs, lines)
        search_signature = "/".join([options.describe(), *self.ensemble_signature()])
        noise = f"{self.config.data.describe_noise()}/seed:{SEED}"
        restoration = signatures(Seq2SeqSetup(f"{search_signature}|noise:{noise}"), lines=len(lines))
        all_scores = scores(items, RESTORATION, restoration)
        if targets is not None:
            items = replace(items, statistics={**items.statistics, **targets.statistics})
            setup = EvaluationSetup(f"source|noise:{noise}", "line", self.plain.hash)
            target_scores = scores(items, TARGETS, signature(setup, tokens=int(targets.statistics["tokens"].sum())))
            all_scores = [*target_scores, *all_scores]
        sources = list(map(self.tokenizer.source.decode, corrupted.source.split()))
        details = partial(item_predictions, self.run, sources, lines, items)
        return Evaluation(scores_by_name(all_scores), items, details, "texts/s", len(lines))

    @property
    def has_log_probs(self) -> bool:
        """Whether there is one model; an ensemble has no loss of its own here."""
        return len(self.members) == 1 and self.lm is None
