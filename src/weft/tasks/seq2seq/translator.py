"""Encoder-decoders that read lines: one run, or several as one, with or without a language model beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.config import read_table
from weft.data.dataset import Dataset
from weft.decode.predict import ROWS, Request
from weft.decode.predict import predict as search
from weft.decode.predict_options import CUT, PredictOptions
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.explain.alignment import Alignment, attention_weights, check_attends
from weft.metrics.bleu_tokenizers import automatic, check_tokenizer
from weft.metrics.items import Items
from weft.metrics.language import Measured, language_scores
from weft.metrics.translation import scored, translation_items, translation_scores
from weft.runs.eval_data import named, own_split
from weft.tasks.seq2seq.compare import observe
from weft.tasks.seq2seq.data import PairsTable, refuse_half
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.tasks.seq2seq.data import references as references_of
from weft.tasks.seq2seq.files import Record
from weft.tasks.seq2seq.objective import padded_sources
from weft.tasks.seq2seq.predict import PairScore, Seq2SeqEvaluation, refuse
from weft.tasks.spec import Evaluation, Files, Watch
from weft.text.gate import clean
from weft.text.sides import Sides

if TYPE_CHECKING:
    from weft.runs.run import Run


class Member:
    """One encoder-decoder that reads sources."""

    def __init__(self, run: Run[str, Prediction]) -> None:
        self.run, self.folder, self.settings = run, run.folder, run.settings
        self.tokenizer: Sides = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `encode`, `start`, `step`, `score`, `loss`."""
        return self.run.model

    @property
    def longest(self) -> int:
        """Tokens of a source, </s> counted."""
        return int(self.settings.data.longest)

    def faults(self, lines: Sequence[str]) -> dict[int, str]:
        """Which lines are longer than the model was made for, by their number from 0, and what to do about it."""
        longest = self.longest
        cure = f"but {self.folder.path} reads at most {longest}; shorten it{CUT}"
        lengths = self.tokenizer.source.encode_flat(lines)[1] + 1
        return {int(at): f"has {lengths[at]:,} tokens, {cure}" for at in np.flatnonzero(lengths > longest)}

    def sources(self, lines: Sequence[str]) -> list[np.ndarray]:
        """The tokens of each line, with </s>; what is longer than the model was made for is cut."""
        longest, end = self.longest, self.tokenizer.source.end
        return [np.append(ids[: longest - 1], end) for ids in self.tokenizer.source.encode_batch(lines)]


class Translator:
    """One run or several that share a target tokenizer; a language model may help to choose among what they write."""

    def __init__(self, run: Run[str, Prediction]) -> None:
        self.run, self.device, self.tokenizer = run, run.device, run.vocabulary
        self.folder, self.settings = run.folder, run.settings
        self.members, self.lm, self.weights = [Member(one) for one in run.members], run.lm, run.weights

    @property
    def model(self) -> Any:
        """What is searched: the model itself, or all of them as one; `start`, `step`, `score`."""
        return self.run.model

    def _encode(self, sources: Sequence[Sequence[np.ndarray]], rows: Sequence[int]) -> Any:
        """The state of `model` that has read some of the sources, each member by its own tokenizer."""
        states = tuple(
            member.model.encode(*padded_sources([own[row] for row in rows], self.device))
            for member, own in zip(self.members, sources, strict=True)
        )
        together = states[0] if len(states) == 1 else states
        return together if self.lm is None else (together, None)

    def encode(self, lines: Sequence[str]) -> Any:
        """The state of `model` that has read these lines, a row each."""
        return self._encode([member.sources(lines) for member in self.members], range(len(lines)))

    # ---- predicting

    def faults(self, lines: Sequence[str], *, truncate: bool = False) -> dict[int, str]:
        """Which lines can't be predicted from, by their number from 0, and why."""
        if truncate:
            return {}
        # the one that reads least has the last word: to shorten a line for another one might not be enough
        least_last = sorted(self.members, key=lambda member: -member.longest)
        return {at: why for member in least_last for at, why in member.faults(lines).items()}

    def unknown(self, lines: Sequence[str]) -> list[str]:
        """What in the lines has no token, one after another: the model reads <unk> there. Of several runs, the most."""
        found = []
        for tokenizer in (member.tokenizer.source for member in self.members):
            odd = [line for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True) if tokenizer.unk in ids]
            found.append(tokenizer.unknown(odd))
        return max(found, key=len)

    def faults_of_pairs(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False) -> dict[int, str]:
        """Which pairs can't be scored, likewise."""
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        return self._faults_of_targets(targets) | self.faults(sources, truncate=truncate)

    def _faults_of_targets(self, targets: Sequence[str]) -> dict[int, str]:
        """Which targets can't be scored, likewise: some models have positions up to a number only."""
        parts = [(member.folder, member.model) for member in self.members]
        parts += [] if self.lm is None else [(self.lm.folder, self.lm.model)]
        limits = [(model.longest, folder.path) for folder, model in parts if model.longest is not None]
        if not limits:
            return {}
        longest, path = min(limits)
        lengths = self.tokenizer.target.encode_flat(targets)[1] + 1
        cure = f"but {path} reads at most {longest}; shorten it"
        return {int(at): f"its target has {lengths[at]:,} tokens, {cure}" for at in np.flatnonzero(lengths > longest)}

    def predict(
        self, read: Sequence[str], options: PredictOptions, starts: Sequence[str], numbers: Sequence[int], watch: Watch | None
    ) -> list[list[Prediction]]:
        """What each line becomes, a beam's best first, samples as they were drawn; an empty line becomes an empty one."""
        found: list[list[Prediction]] = [[Prediction("", [], 0.0, 0.0)] for _ in read]
        filled = [number for number, line in enumerate(read) if line.strip()]
        sources = [member.sources([read[number] for number in filled]) for member in self.members]
        request = Request(
            self.model,
            self.tokenizer.target,
            lambda rows: self._encode(sources, rows),
            [min(map(len, line)) for line in zip(*sources, strict=True)],
            [self._forced(starts[number]) for number in filled],
            self.device,
            [numbers[number] - 1 for number in filled],
        )
        for number, predictions in zip(filled, search(request, options, watch=watch), strict=True):
            found[number] = predictions
        return found

    def aligned(
        self, lines: Sequence[str], found: Sequence[list[Prediction]], layer: int | None, head: int | None
    ) -> list[list[Prediction]]:
        """The predictions for each line; those that have a token say where they looked."""
        pairs = [(line, one) for line, some in zip(lines, found, strict=True) for one in some if one.tokens]
        looked = iter(self.align([line for line, _ in pairs], [one for _, one in pairs], layer=layer, head=head))
        return [[one._replace(alignment=next(looked)) if one.tokens else one for one in some] for some in found]

    def _forced(self, prefix: str) -> list[int]:
        """The tokens that an output must start with."""
        ids: list[int] = self.tokenizer.target.encode(prefix).tolist()
        if self.tokenizer.target.unk in ids:
            raise UsageError(f"--prefix {prefix!r}: holds what the tokenizer of targets can't spell; no output starts so")
        return ids

    def check_attention(self) -> None:
        """Refuse to align where there is nothing to be seen."""
        if len(self.members) > 1 or self.lm is not None:
            raise UsageError("alignments: several models look in several ways; align with one run")
        check_attends(self.members[0].model)

    def align(
        self, lines: Sequence[str], outputs: Sequence[Prediction], *, layer: int | None = None, head: int | None = None
    ) -> list[Alignment]:
        """Where each token of a prediction looked in its line: in one layer and head (from 1), or in the mean of all."""
        self.check_attention()
        member, sides = self.members[0], self.tokenizer
        sources = member.sources(lines)
        targets = [[*output.prefix, *output.tokens] for output in outputs]
        found: list[np.ndarray] = []
        for low in range(0, len(sources), ROWS):
            part = slice(low, low + ROWS)
            tokens = [np.array([sides.target.begin, *target]) for target in targets[part]]
            rows = padded_sources(sources[part], self.device), padded_sources(tokens, self.device)
            found += attention_weights(member.model, *rows, layer=layer, head=head)
        return [
            Alignment([sides.source.show(token) for token in source], [sides.target.show(token) for token in target], weights)
            for source, target, weights in zip(sources, targets, found, strict=True)
        ]

    # ---- scoring

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False, watch: Watch | None = None) -> list[PairScore]:
        """The log-probability of each target, given its source, and of each of its tokens; beside a language model the sum that
        predictions are ordered by."""
        found: list[PairScore] = []
        read = [(clean(a, f"line {number}"), clean(b, f"line {number}")) for number, (a, b) in enumerate(pairs, 1)]
        refuse(self.faults_of_pairs(read, truncate=truncate), lambda at: f"line {1 + at}")
        target = self.tokenizer.target
        for low in range(0, len(read), ROWS):
            part = read[low : low + ROWS]
            sources = [member.sources([source for source, _ in part]) for member in self.members]
            rows = [[target.begin, *ids.tolist(), target.end] for ids in target.encode_batch([text for _, text in part])]
            tokens, keep = padded_sources([np.array(row) for row in rows], self.device)
            values = self.model.score(tokens, keep, self._encode(sources, range(len(part)))).double().cpu().tolist()
            for (source, text), row, value in zip(part, rows, values, strict=True):
                kept = value[: len(row) - 1]
                found.append(PairScore(source, text, sum(kept), [target.show(token) for token in row[1:]], kept))
            if watch is not None:
                watch(len(found), len(pairs))
        return found

    # ---- evaluating

    def evaluate(self, data: Files | None, given: Seq2SeqEvaluation, watch: Watch | None) -> Evaluation:
        """Scores of what is written for whole files of pairs, and the exact loss; beside a language model there is no loss."""
        if given.tokenize is not None:
            check_tokenizer(given.tokenize)
        files = self._pairs(data)
        pairs = list(pairs_of(files))
        lines, targets = [line for line, _ in pairs], [target for _, target in pairs]
        # before the search, which takes long, and with the place in the file
        refuse(self.faults(lines, truncate=given.truncate), lambda at: files.place(at, "source"))
        if self.lm is None:
            refuse(self._faults_of_targets(targets), lambda at: files.place(at, "target"))
        references = list(references_of(files))
        split = given.tokenize or automatic(references, spaced=self.tokenizer.target.kind == "space")
        items = translation_items(
            [best[0].text for best in self.predict(lines, given, [""] * len(lines), range(1, 1 + len(lines)), watch)],
            references,
            tokenize=split,
        )
        how = "/".join([given.describe(), *self._company()])
        scores = translation_scores(items, scored(references, search=how, tokenize=split))
        if self.lm is not None:  # the sum of log-probabilities is a score to choose by, and no probability
            return Evaluation(scores, items, partial(observe, self.run, pairs, items), "lines/s", len(pairs))
        losses, measured = self._losses(pairs, truncate=given.truncate), Measured("source", "line", self.tokenizer.target.hash)
        both = replace(items, statistics={**items.statistics, **losses.statistics})
        scores += language_scores(losses, measured)
        return Evaluation(scores, both, partial(observe, self.run, pairs, both), "lines/s", len(pairs))

    def _company(self) -> list[str]:
        """Who else searched, for the signature."""
        others = [f"runs:{len(self.members)}"] if len(self.members) > 1 else []
        if others and self.weights is not None:
            others.append("weights:" + ",".join(f"{weight:g}" for weight in self.weights))
        return [*others, self.lm.describe()] if self.lm is not None else others

    def _losses(self, pairs: Sequence[tuple[str, str]], *, truncate: bool) -> Items:
        """Nats and tokens of each target."""
        found = self.score(pairs, truncate=truncate)
        tokens = np.array([len(one.tokens) for one in found], np.float64)
        nats = np.array([-one.log_prob for one in found], np.float64)
        return Items(np.arange(len(found)), {"nats": nats, "tokens": tokens})

    def _pairs(self, data: Files | None) -> Dataset[Record]:
        """The pairs of some files, read as those of training are, or the run's own."""
        table: PairsTable = self.settings.data
        if data is not None:
            refuse_half(paths := named(data))
            read = {"train": list(map(str, paths)), "encoding": table.encoding, "source": table.source, "target": table.target}
            return read_table(PairsTable, read, at="data").sources(Path())["train"]
        own: Dataset[Record] = own_split(self.folder, self.settings)[1]
        return own
