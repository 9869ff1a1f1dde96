"""Encoder-decoders that read lines: one run, or several as one, with or without a language model beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.config import parse_config
from weft.data.dataset import Dataset
from weft.decode.predict import MAX_BATCH_SOURCES, PredictionRequest
from weft.decode.predict import predict as search
from weft.decode.predict_options import TRUNCATION, PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.explain.alignment import Alignment, check_source_attention, source_attention_weights
from weft.metrics.bleu_tokenizers import check_tokenizer, detect_tokenizer
from weft.metrics.items import ItemStatistics
from weft.metrics.lm import EvaluationSetup, language_scores
from weft.metrics.seq2seq import scored, seq2seq_items, seq2seq_scores
from weft.runs.eval_data import named, own_split
from weft.tasks.seq2seq.compare import observe
from weft.tasks.seq2seq.data import PairDataConfig, check_pairs_complete
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.tasks.seq2seq.data import references as references_of
from weft.tasks.seq2seq.files import Record
from weft.tasks.seq2seq.objective import pad_sources
from weft.tasks.seq2seq.predict import PairScore, Seq2SeqEvaluation, refuse
from weft.tasks.spec import Evaluation, Files, ProgressCallback
from weft.text.reading import check_text
from weft.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from weft.runs.run import Run


class EnsembleMember:
    """One encoder-decoder that reads sources."""

    def __init__(self, run: Run[str, Prediction]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer: TokenizerPair = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `encode`, `start`, `step`, `score`, `loss`."""
        return self.run.model

    @property
    def max_positions(self) -> int:
        """Tokens of a source, </s> counted."""
        return int(self.config.data.max_length)

    def invalid_inputs(self, texts: Sequence[str]) -> dict[int, str]:
        """Which lines are longer than the model was made for, by their number from 0, and what to do about it."""
        max_length = self.max_positions
        fix = f"but {self.directory.path} reads at most {max_length}; shorten it{TRUNCATION}"
        lengths = self.tokenizer.source.encode_concatenated(texts)[1] + 1
        return {int(at): f"has {lengths[at]:,} tokens, {fix}" for at in np.flatnonzero(lengths > max_length)}

    def sources(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of each line, with </s>; what is longer than the model was made for is cut."""
        max_length, end = self.max_positions, self.tokenizer.source.eos_id
        return [np.append(ids[: max_length - 1], end) for ids in self.tokenizer.source.encode_batch(texts)]


class Seq2SeqRun:
    """One run or several that share a target tokenizer; a language model may help to choose among what they write."""

    def __init__(self, run: Run[str, Prediction]) -> None:
        self.run, self.device, self.tokenizer = run, run.device, run.vocabulary
        self.directory, self.config = run.directory, run.config
        self.members, self.lm, self.weights = [EnsembleMember(one) for one in run.members], run.lm, run.weights

    @property
    def model(self) -> Any:
        """What is searched: the model itself, or all of them as one; `start`, `step`, `score`."""
        return self.run.model

    def _encode(self, sources: Sequence[Sequence[np.ndarray]], rows: Sequence[int]) -> Any:
        """The state of `model` that has read some of the sources, each member by its own tokenizer."""
        states = tuple(
            member.model.encode(*pad_sources([own[row] for row in rows], self.device))
            for member, own in zip(self.members, sources, strict=True)
        )
        together = states[0] if len(states) == 1 else states
        return together if self.lm is None else (together, None)

    def encode(self, lines: Sequence[str]) -> Any:
        """The state of `model` that has read these lines, a row each."""
        return self._encode([member.sources(lines) for member in self.members], range(len(lines)))

    # ---- predicting

    def invalid_inputs(self, texts: Sequence[str], *, truncate: bool = False) -> dict[int, str]:
        """Which lines can't be predicted from, by their number from 0, and why."""
        if truncate:
            return {}
        # the one that reads least has the last word: to shorten a line for another one might not be enough
        least_last = sorted(self.members, key=lambda member: -member.max_positions)
        return {at: why for member in least_last for at, why in member.invalid_inputs(texts).items()}

    def unknown_tokens(self, texts: Sequence[str]) -> list[str]:
        """What in the lines has no token, one after another: the model reads <unk> there. Of several runs, the most."""
        found = []
        for tokenizer in (member.tokenizer.source for member in self.members):
            odd = [line for line, ids in zip(texts, tokenizer.encode_batch(texts), strict=True) if tokenizer.unk_id in ids]
            found.append(tokenizer.count_unknown(odd))
        return max(found, key=len)

    def invalid_pairs(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False) -> dict[int, str]:
        """Which pairs can't be scored, likewise."""
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        return self._faults_of_targets(targets) | self.invalid_inputs(sources, truncate=truncate)

    def _faults_of_targets(self, targets: Sequence[str]) -> dict[int, str]:
        """Which targets can't be scored, likewise: some models have positions up to a number only."""
        parts = [(member.directory, member.model) for member in self.members]
        parts += [] if self.lm is None else [(self.lm.directory, self.lm.model)]
        limits = [(model.max_positions, directory.path) for directory, model in parts if model.max_positions is not None]
        if not limits:
            return {}
        max_length, path = min(limits)
        lengths = self.tokenizer.target.encode_concatenated(targets)[1] + 1
        fix = f"but {path} reads at most {max_length}; shorten it"
        return {int(at): f"its target has {lengths[at]:,} tokens, {fix}" for at in np.flatnonzero(lengths > max_length)}

    def predict(
        self,
        read: Sequence[str],
        options: PredictionConfig,
        starts: Sequence[str],
        numbers: Sequence[int],
        progress: ProgressCallback | None,
    ) -> list[list[Prediction]]:
        """What each line becomes, a beam's best first, samples as they were drawn; an empty line becomes an empty one."""
        found: list[list[Prediction]] = [[Prediction("", [], 0.0, 0.0)] for _ in read]
        filled = [number for number, line in enumerate(read) if line.strip()]
        sources = [member.sources([read[number] for number in filled]) for member in self.members]
        request = PredictionRequest(
            self.model,
            self.tokenizer.target,
            lambda rows: self._encode(sources, rows),
            [min(map(len, line)) for line in zip(*sources, strict=True)],
            [self._forced(starts[number]) for number in filled],
            self.device,
            [numbers[number] - 1 for number in filled],
        )
        for number, predictions in zip(filled, search(request, options, progress=progress), strict=True):
            found[number] = predictions
        return found

    def aligned(
        self, lines: Sequence[str], found: Sequence[list[Prediction]], layer: int | None, head: int | None
    ) -> list[list[Prediction]]:
        """The predictions for each line; those that have a token say where they looked."""
        pairs = [(line, one) for line, some in zip(lines, found, strict=True) for one in some if one.token_ids]
        looked = iter(self.align([line for line, _ in pairs], [one for _, one in pairs], layer=layer, head=head))
        return [[one._replace(alignment=next(looked)) if one.token_ids else one for one in some] for some in found]

    def _forced(self, prefix: str) -> list[int]:
        """The tokens that an output must start with."""
        ids: list[int] = self.tokenizer.target.encode(prefix).tolist()
        if self.tokenizer.target.unk_id in ids:
            raise UsageError(
                f"--target-prefix {prefix!r}", "holds what the tokenizer of targets can't spell", "no output starts so"
            )
        return ids

    def check_attention(self) -> None:
        """Refuse to align where there is nothing to be seen."""
        if len(self.members) > 1 or self.lm is not None:
            raise UsageError("alignments", "several models look in several ways", "align with one run")
        check_source_attention(self.members[0].model)

    def align(
        self, texts: Sequence[str], predictions: Sequence[Prediction], *, layer: int | None = None, head: int | None = None
    ) -> list[Alignment]:
        """Where each token of a prediction looked in its line: in one layer and head (from 1), or in the mean of all."""
        self.check_attention()
        member, sides = self.members[0], self.tokenizer
        sources = member.sources(texts)
        targets = [[*output.prefix, *output.token_ids] for output in predictions]
        found: list[np.ndarray] = []
        for low in range(0, len(sources), MAX_BATCH_SOURCES):
            part = slice(low, low + MAX_BATCH_SOURCES)
            tokens = [np.array([sides.target.bos_id, *target]) for target in targets[part]]
            rows = pad_sources(sources[part], self.device), pad_sources(tokens, self.device)
            found += source_attention_weights(member.model, *rows, layer=layer, head=head)
        return [
            Alignment(
                [sides.source.token_text(token) for token in source],
                [sides.target.token_text(token) for token in target],
                weights,
            )
            for source, target, weights in zip(sources, targets, found, strict=True)
        ]

    # ---- scoring

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False, progress: ProgressCallback | None = None
    ) -> list[PairScore]:
        """The log-probability of each target, given its source, and of each of its tokens; beside a language model the sum that
        predictions are ordered by."""
        found: list[PairScore] = []
        read = [(check_text(a, f"line {number}"), check_text(b, f"line {number}")) for number, (a, b) in enumerate(pairs, 1)]
        refuse(self.invalid_pairs(read, truncate=truncate), lambda at: f"line {1 + at}")
        target = self.tokenizer.target
        for low in range(0, len(read), MAX_BATCH_SOURCES):
            part = read[low : low + MAX_BATCH_SOURCES]
            sources = [member.sources([source for source, _ in part]) for member in self.members]
            rows = [[target.bos_id, *ids.tolist(), target.eos_id] for ids in target.encode_batch([text for _, text in part])]
            tokens, token_mask = pad_sources([np.array(row) for row in rows], self.device)
            values = self.model.score(tokens, token_mask, self._encode(sources, range(len(part)))).double().cpu().tolist()
            for (source, text), row, value in zip(part, rows, values, strict=True):
                kept = value[: len(row) - 1]
                found.append(PairScore(source, text, sum(kept), [target.token_text(token) for token in row[1:]], kept))
            if progress is not None:
                progress(len(found), len(pairs))
        return found

    # ---- evaluating

    def evaluate(self, data: Files | None, given: Seq2SeqEvaluation, progress: ProgressCallback | None) -> Evaluation:
        """Scores of what is written for whole files of pairs, and the exact loss; beside a language model there is no loss."""
        if given.tokenize is not None:
            check_tokenizer(given.tokenize)
        files = self._pairs(data)
        pairs = list(pairs_of(files))
        lines, targets = [line for line, _ in pairs], [target for _, target in pairs]
        # before the search, which takes long, and with the place in the file
        refuse(self.invalid_inputs(lines, truncate=given.truncate), lambda at: files.place(at, "source"))
        if self.lm is None:
            refuse(self._faults_of_targets(targets), lambda at: files.place(at, "target"))
        references = list(references_of(files))
        split = given.tokenize or detect_tokenizer(references, spaced=self.tokenizer.target.type == "whitespace")
        items = seq2seq_items(
            [best[0].text for best in self.predict(lines, given, [""] * len(lines), range(1, 1 + len(lines)), progress)],
            references,
            tokenize=split,
        )
        how = "/".join([given.describe(), *self._ensemble_members()])
        scores = seq2seq_scores(items, scored(references, search=how, tokenize=split))
        if self.lm is not None:  # the sum of log-probabilities is a score to choose by, and no probability
            return Evaluation(scores, items, partial(observe, self.run, pairs, items), "lines/s", len(pairs))
        losses, measured = (
            self._losses(pairs, truncate=given.truncate),
            EvaluationSetup("source", "line", self.tokenizer.target.hash),
        )
        both = replace(items, statistics={**items.statistics, **losses.statistics})
        scores += language_scores(losses, measured)
        return Evaluation(scores, both, partial(observe, self.run, pairs, both), "lines/s", len(pairs))

    def _ensemble_members(self) -> list[str]:
        """Who else searched, for the signature."""
        others = [f"runs:{len(self.members)}"] if len(self.members) > 1 else []
        if others and self.weights is not None:
            others.append("weights:" + ",".join(f"{weight:g}" for weight in self.weights))
        return [*others, self.lm.describe()] if self.lm is not None else others

    def _losses(self, pairs: Sequence[tuple[str, str]], *, truncate: bool) -> ItemStatistics:
        """Nats and tokens of each target."""
        found = self.score(pairs, truncate=truncate)
        tokens = np.array([len(one.tokens) for one in found], np.float64)
        nats = np.array([-one.log_prob for one in found], np.float64)
        return ItemStatistics(np.arange(len(found)), {"nats": nats, "tokens": tokens})

    def _pairs(self, data: Files | None) -> Dataset[Record]:
        """The pairs of some files, read as those of training are, or the run's own."""
        config: PairDataConfig = self.config.data
        if data is not None:
            check_pairs_complete(paths := named(data))
            read = {
                "train": list(map(str, paths)),
                "encoding": config.encoding,
                "source_column": config.source_column,
                "target_column": config.target_column,
            }
            return parse_config(PairDataConfig, read, at="data").sources(Path())["train"]
        own: Dataset[Record] = own_split(self.directory, self.config)[1]
        return own
