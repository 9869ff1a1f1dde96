"""Trained encoder-decoders, from Python: one run, or several as one, with or without a language model beside them.

run = weft.load("runs/x"), then run.predict(...), run.score(...), run.evaluate(...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.config import read_table
from weft.data.pairs import PairSource, PairsTable
from weft.decode.ensemble import Ensemble, Fusion, Mixture
from weft.decode.options import chosen
from weft.decode.predict import ROWS, Prediction, Request, predict
from weft.decode.predict_options import CUT, PredictOptions
from weft.errors import DataError, UsageError
from weft.explain import views
from weft.explain.alignment import Alignment, attention_weights, check_attends
from weft.explain.options import ExplainOptions
from weft.explain.view import View
from weft.files import sha256
from weft.metrics.bleu_tokenizers import automatic, check_tokenizer
from weft.metrics.items import Items, Score
from weft.metrics.language import Measured, language_scores
from weft.metrics.translation import scored, translation_items, translation_scores
from weft.tasks.seq2seq.objective import padded_sources
from weft.text.gate import clean
from weft.text.sides import Sides
from weft.train.folder import RunFolder
from weft.train.held import named, own_split, refuse_half
from weft.train.settings import Settings

Watch = Callable[[int, int], None]
Files = str | Path | Sequence[str | Path]


def parameters(model: Any) -> int:
    """Numbers that were learned: weights, or n-grams."""
    counted = model.parameters
    return counted if isinstance(counted, int) else sum(weight.numel() for weight in counted())


class Member:
    """One run, read."""

    def __init__(self, folder: RunFolder, settings: Settings, tokenizer: Sides, device: torch.device) -> None:
        self.folder, self.settings, self.tokenizer, self.device = folder, settings, tokenizer, device

    @cached_property
    def model(self) -> Any:
        """The model itself: `encode`, `start`, `step`, `score`, `loss`."""
        return self.settings.preset.family.load(self.settings, self.tokenizer, self.folder, self.device)

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


class PairScore(NamedTuple):
    """A target under a model that has read its source, in nats; the end token is among its tokens."""

    source: str
    target: str
    log_prob: float
    tokens: list[str]
    log_probs: list[float]

    @property
    def text(self) -> str:
        """The pair as it is read."""
        return f"{self.source}\t{self.target}"

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens)))


class Beside(NamedTuple):
    """A language model of the targets that helps to choose."""

    folder: RunFolder
    model: Any
    weight: float  # of its log-probabilities

    def describe(self) -> str:
        """Which one, by the sum of its weights, and how much it counts: for a signature."""
        return f"lm:{sha256(self.folder.weights)[:8]}*{self.weight:g}"


class Translator:
    """One run or several that share a target tokenizer; a language model may help to choose among what they write."""

    def __init__(
        self,
        members: Sequence[Member],
        device: torch.device,
        *,
        weights: Sequence[float] | None = None,
        lm: Beside | None = None,
    ) -> None:
        if not members:
            raise UsageError("ensemble: no run is given; name at least one")
        self.members, self.device, self.weights, self.lm = list(members), device, weights, lm

    @cached_property
    def model(self) -> Any:
        """What is searched: the model itself, or all of them as one; `start`, `step`, `score`."""
        parts = [member.model for member in self.members]
        both: Any = Ensemble(parts, Mixture([1 / len(parts)] * len(parts) if self.weights is None else self.weights))
        both = both if len(parts) > 1 else parts[0]
        return both if self.lm is None else Ensemble([both, self.lm.model], Fusion([1.0, self.lm.weight]))

    @property
    def folder(self) -> RunFolder:
        return self.members[0].folder

    @property
    def settings(self) -> Settings:
        return self.members[0].settings

    @property
    def tokenizer(self) -> Sides:
        return self.members[0].tokenizer

    def _encode(self, sources: Sequence[Sequence[np.ndarray]], rows: Sequence[int]) -> Any:
        """The state of `model` that has read some of the sources, each member by its own tokenizer."""
        states = tuple(
            member.model.encode(*padded_sources([own[row] for row in rows], self.device))
            for member, own in zip(self.members, sources, strict=True)
        )
        together = states[0] if len(states) == 1 else states
        return together if self.lm is None else (together, None)

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
        self,
        lines: str | Sequence[str],
        options: PredictOptions | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        alignments: bool = False,
        first: int = 1,
        watch: Watch | None = None,
        **named: Any,
    ) -> list[list[Prediction]]:
        """What each line becomes, a beam's best first, samples as they were drawn; options as one object, or by name:
        `predict("Baum", beam=10)`. An empty line becomes an empty one. With alignments, each prediction that has a token says
        where it looked. `first` is the number of the first line in a larger input: samples follow from seed and number."""
        given = chosen(PredictOptions, options, named)
        given_lines = [lines] if isinstance(lines, str) else lines
        read = [clean(line, f"line {number}") for number, line in enumerate(given_lines, first)]
        forced = [""] * len(read) if prefixes is None else prefixes
        starts = [clean(prefix, f"prefix {number}") for number, prefix in enumerate(forced, first)]
        if len(starts) != len(read):
            raise UsageError(f"predict: {len(starts)} prefixes for {len(read)} lines; give one a line")
        found: list[list[Prediction]] = [[Prediction("", [], 0.0, 0.0)] for _ in read]
        refuse(self.faults(read, truncate=given.truncate), lambda at: f"line {first + at}")
        filled = [number for number, line in enumerate(read) if line.strip()]
        sources = [member.sources([read[number] for number in filled]) for member in self.members]
        request = Request(
            self.model,
            self.tokenizer.target,
            lambda rows: self._encode(sources, rows),
            [min(map(len, line)) for line in zip(*sources, strict=True)],
            [self._forced(starts[number]) for number in filled],
            self.device,
            [first - 1 + number for number in filled],
        )
        for number, predictions in zip(filled, predict(request, given, watch=watch), strict=True):
            found[number] = self._aligned(read[number], predictions) if alignments else predictions
        return found

    def _aligned(self, line: str, predictions: list[Prediction]) -> list[Prediction]:
        looked = self.align([line] * len(predictions), predictions)
        return [one._replace(alignment=where) for one, where in zip(predictions, looked, strict=True)]

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

    def evaluate(
        self,
        data: Files | None = None,
        options: PredictOptions | None = None,
        *,
        tokenize: str | None = None,
        watch: Watch | None = None,
        **named: Any,
    ) -> list[Score]:
        """Scores of what is written for whole files of pairs, and the exact loss, with intervals; options as for `predict`.
        `tokenize` is how BLEU splits, None: as suits the references. Beside a language model there is no loss."""
        return self.measure(data, chosen(PredictOptions, options, named), tokenize=tokenize, watch=watch)[0]

    def measure(
        self,
        data: Files | None = None,
        options: PredictOptions | None = None,
        *,
        tokenize: str | None = None,
        watch: Watch | None = None,
    ) -> tuple[list[Score], Items]:
        """Scores, and what they were made from, line by line."""
        if tokenize is not None:
            check_tokenizer(tokenize)
        given, files = options or PredictOptions(), self._pairs(data)
        pairs = list(files.pairs())
        lines, targets = [line for line, _ in pairs], [target for _, target in pairs]
        # before the search, which takes long, and with the place in the file
        refuse(self.faults(lines, truncate=given.truncate), lambda at: files.place(at, "source"))
        if self.lm is None:
            refuse(self._faults_of_targets(targets), lambda at: files.place(at, "target"))
        references = list(files.references())
        split = tokenize or automatic(references, spaced=self.tokenizer.target.kind == "space")
        items = translation_items(
            [best[0].text for best in self.predict(lines, given, watch=watch)], references, tokenize=split
        )
        search = "/".join([given.describe(), *self._company()])
        scores = translation_scores(items, scored(references, search=search, tokenize=split))
        if self.lm is not None:  # the sum of log-probabilities is a score to choose by, and no probability
            return scores, items
        losses, measured = self._losses(pairs, truncate=given.truncate), Measured("source", "line", self.tokenizer.target.hash)
        both = replace(items, statistics={**items.statistics, **losses.statistics})
        return [*scores, *language_scores(losses, measured)], both

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

    def _pairs(self, data: Files | None) -> PairSource:
        """The pairs of some files, read as those of training are, or the run's own."""
        table: PairsTable = self.settings.data
        if data is not None:
            refuse_half(paths := named(data))
            read = {"train": list(map(str, paths)), "encoding": table.encoding, "source": table.source, "target": table.target}
            return read_table(PairsTable, read, at="data").sources(Path())["train"]
        own: PairSource = own_split(self.folder, self.settings)[1]
        return own

    def explain(self, text: str, what: str | None = None, options: ExplainOptions | None = None, **named: Any) -> View:
        """How a line becomes its output: data, pictures and words of one view; options as one object, or by name:
        `explain("Baum", "attribution", method="occlusion")`."""
        return views.explain(self, text, what, options, named)

    def info(self) -> Mapping[str, Any]:
        """What the run is, or the first of several: settings, how far it got; sizes are those of all models together."""
        models = [*(member.model for member in self.members), *([] if self.lm is None else [self.lm.model])]
        return {
            "path": str(self.folder.path),
            "task": self.settings.task,
            "kind": self.settings.kind,
            "parameters": sum(parameters(model) for model in models),
            "vocabulary": {side: getattr(self.tokenizer, side).size for side in ("source", "target")},
            "tokenizer": self.tokenizer.hash,
            "settings": self.settings.to_dict(),
        }


def refuse(faults: Mapping[int, str], place: Callable[[int], str]) -> None:
    """Refuse the first of the lines that have a fault, by its place."""
    if faults:
        raise DataError(f"{place(min(faults))}: {faults[min(faults)]}")
