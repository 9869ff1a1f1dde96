"""Prediction and scoring with encoder-decoders: one run or an ensemble, optionally with shallow fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.decode.predict import MAX_BATCH_SOURCES, PredictionRequest, Search
from weft.decode.predict import predict as search
from weft.decode.predict_options import TRUNCATION, PredictionConfig
from weft.decode.prediction import PairScore, Prediction
from weft.errors import UsageError
from weft.explain.alignment import Alignment, check_source_attention, source_attention_weights
from weft.metrics.items import ItemStatistics
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.encoder_decoder.pair_batch import pad_rows
from weft.tasks.encoder_decoder.predict import refuse
from weft.tasks.spec import ProgressCallback
from weft.text.reading import check_text
from weft.text.tokenizer_pair import TokenizerPair

if TYPE_CHECKING:
    from weft.runs.run import Run

Tokenizers = Callable[["Run[str, Prediction]"], TokenizerPair]  # the tokenizers of sources and targets of a run


class EnsembleMember:
    """One encoder-decoder of an ensemble."""

    def __init__(self, run: Run[str, Prediction], tokenizer: TokenizerPair) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer = tokenizer

    @property
    def model(self) -> Any:
        """The model itself: `encode`, `start`, `step`, `score`, `loss`."""
        return self.run.model

    @property
    def max_positions(self) -> int:
        """Maximum number of source tokens, with </s>."""
        return int(self.config.data.max_length)

    def invalid_inputs(self, texts: Sequence[str]) -> dict[int, str]:
        """Lines that are too long for the model, by number from 0, with the problem."""
        max_length = self.max_positions
        lengths = self.tokenizer.source.encode_concatenated(texts)[1] + 1 + len(self.tokenizer.source.start_tokens.source)
        fix = f"shorten it{TRUNCATION}"
        return {
            int(number): f"{lengths[number]:,} tokens exceed the model's limit of {max_length}; {fix}"
            for number in np.flatnonzero(lengths > max_length)
        }

    def sources(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of each line, with start tokens and </s>, truncated to the limit of the model."""
        start, eos_id = np.array(self.tokenizer.source.start_tokens.source, np.int64), self.tokenizer.source.eos_id
        max_tokens = self.max_positions - 1 - len(start)
        rows = self.tokenizer.source.encode_batch(texts)
        return [np.concatenate([start, ids[:max_tokens], [eos_id]]) for ids in rows]


class EncoderDecoderPredictor:
    """One run or an ensemble of runs with the same target tokenizer, optionally with a language model (shallow fusion)."""

    def __init__(self, run: Run[str, Prediction], tokenizers: Tokenizers) -> None:
        self.run, self.device, self.tokenizer = run, run.device, tokenizers(run)
        self.directory, self.config, self.lm, self.weights = run.directory, run.config, run.lm, run.weights
        self.members = [EnsembleMember(member, tokenizers(member)) for member in run.members]

    @property
    def model(self) -> Any:
        """The model to search with, or the ensemble; has `start`, `step` and `score`."""
        return self.run.model

    @property
    def suppressed_tokens(self) -> Sequence[int]:
        """Tokens of the target vocabulary that are never generated, in addition to <unk> and <s>."""
        return ()

    def _encode(self, sources: Sequence[Sequence[np.ndarray]], rows: Sequence[int]) -> Any:
        """The state of `model` after encoding some of the sources, which each member tokenizes itself."""
        return self.encode_tokens([[member_sources[row] for row in rows] for member_sources in sources])

    def encode_tokens(self, sources: Sequence[Sequence[np.ndarray]]) -> Any:
        """The state of `model` after encoding the sources, which are given for each member."""
        states = tuple(
            member.model.encode(*pad_rows(member_sources, self.device))
            for member, member_sources in zip(self.members, sources, strict=True)
        )
        state = states[0] if len(states) == 1 else states
        return state if self.lm is None else (state, None)

    def encode_lines(self, lines: Sequence[tuple[np.ndarray, ...]]) -> Any:
        """The state of `model` after encoding sources, each of which is given for each member."""
        return self.encode_tokens(list(zip(*lines, strict=True)))

    def encode(self, lines: Sequence[str]) -> Any:
        """The state of `model` after encoding these lines, one row per line."""
        return self._encode([member.sources(lines) for member in self.members], range(len(lines)))

    # ---- predicting

    def invalid_inputs(self, texts: Sequence[str], *, truncate: bool = False) -> dict[int, str]:
        """Lines that cannot be predicted from, by number from 0, with the problem."""
        if truncate:
            return {}
        # the smallest limit is the one to report: a line shortened for another member might still be too long
        smallest_last = sorted(self.members, key=lambda member: -member.max_positions)
        return {number: problem for member in smallest_last for number, problem in member.invalid_inputs(texts).items()}

    def unknown_tokens(self, texts: Sequence[str]) -> list[str]:
        """The parts of the lines that become <unk>, in order; in an ensemble, those of the member with the most."""
        unknown = []
        for tokenizer in (member.tokenizer.source for member in self.members):
            with_unk = [line for line, ids in zip(texts, tokenizer.encode_batch(texts), strict=True) if tokenizer.unk_id in ids]
            unknown.append(tokenizer.unknown_parts(with_unk))
        return max(unknown, key=len)

    def invalid_pairs(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False) -> dict[int, str]:
        """Pairs that cannot be scored, by number from 0, with the problem."""
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        return self.invalid_targets(targets) | self.invalid_inputs(sources, truncate=truncate)

    def invalid_targets(self, targets: Sequence[str]) -> dict[int, str]:
        """Targets that are too long for a model with a limited number of positions, by number from 0, with the problem."""
        models = [member.model for member in self.members]
        models += [] if self.lm is None else [self.lm.model]
        limits = [model.max_positions for model in models if model.max_positions is not None]
        if not limits:
            return {}
        max_length = min(limits)
        lengths = self.tokenizer.target.encode_concatenated(targets)[1] + len(self.tokenizer.target.start_tokens.target)
        return {
            int(number): f"{lengths[number]:,} target tokens exceed the model's limit of {max_length}; shorten it"
            for number in np.flatnonzero(lengths > max_length)
        }

    def predict(
        self,
        lines: Sequence[str],
        options: PredictionConfig,
        prefixes: Sequence[str],
        numbers: Sequence[int],
        progress: ProgressCallback | None,
    ) -> list[list[Prediction]]:
        """The outputs for each line: of beam search, best first; samples in the order of sampling. An empty line has an empty
        output."""
        return self.search(self.prepare(lines, prefixes, numbers), options, progress)

    def search(self, prepared: Search, options: PredictionConfig, progress: ProgressCallback | None) -> list[Any]:
        """Search, by weft or by the engine of the run, and finish the outputs."""
        decode = search if self.run.decoder is None else self.run.decoder.predict
        return prepared.finish(decode(prepared.request, options, progress=progress))

    def prepare(self, lines: Sequence[str], prefixes: Sequence[str], numbers: Sequence[int]) -> Search:
        """What to search for, and how its outputs become the outputs for each line."""
        nonempty = [number for number, line in enumerate(lines) if line.strip()]
        sources = [member.sources([lines[number] for number in nonempty]) for member in self.members]
        request = PredictionRequest(
            self.model,
            self.tokenizer.target,
            lambda rows: self._encode(sources, rows),
            [min(map(len, line)) for line in zip(*sources, strict=True)],
            [self._prefix_tokens(prefixes[number]) for number in nonempty],
            self.device,
            self.tokenizer.target.start_tokens.target,
            [numbers[number] - 1 for number in nonempty],
            self.suppressed_tokens,
            list(zip(*sources, strict=True)),
            self.encode_lines,
            self.run.group,
        )

        def finish(found: list[list[Prediction]]) -> list[list[Prediction]]:
            outputs = [[Prediction("", [], 0.0, 0.0)] for _ in lines]
            for number, predictions in zip(nonempty, found, strict=True):
                outputs[number] = predictions
            return outputs

        return Search(request, finish)

    def with_alignments(
        self, lines: Sequence[str], outputs: Sequence[list[Prediction]], layer: int | None, head: int | None
    ) -> list[list[Prediction]]:
        """The outputs for each line with alignments, except empty outputs."""
        pairs = [
            (line, output)
            for line, line_outputs in zip(lines, outputs, strict=True)
            for output in line_outputs
            if output.token_ids
        ]
        alignments = iter(self.align([line for line, _ in pairs], [output for _, output in pairs], layer=layer, head=head))
        return [
            [output._replace(alignment=next(alignments)) if output.token_ids else output for output in line_outputs]
            for line_outputs in outputs
        ]

    def _prefix_tokens(self, prefix: str) -> list[int]:
        """The tokens that an output must start with."""
        ids: list[int] = self.tokenizer.target.encode(prefix).tolist()
        if self.tokenizer.target.unk_id in ids:
            raise UsageError("target_prefix", f"{prefix!r} contains a token that is not in the target vocabulary")
        return ids

    def check_attention(self) -> None:
        """Refuse alignments of models without attention to the source."""
        if len(self.members) > 1 or self.lm is not None:
            raise UsageError("return_alignments", "not available for several models", "align with one run")
        check_source_attention(self.members[0].model)

    def align(
        self, texts: Sequence[str], predictions: Sequence[Prediction], *, layer: int | None = None, head: int | None = None
    ) -> list[Alignment]:
        """The attention weights between each line and its prediction: of one layer and head (from 1), or the mean of all."""
        self.check_attention()
        member, tokenizers = self.members[0], self.tokenizer
        sources = member.sources(texts)
        targets = [[*output.prefix, *output.token_ids] for output in predictions]
        start, attention = tokenizers.target.start_tokens.target, list[np.ndarray]()
        for low in range(0, len(sources), MAX_BATCH_SOURCES):
            part = slice(low, low + MAX_BATCH_SOURCES)
            tokens = [np.array([*start, *target]) for target in targets[part]]
            rows = pad_rows(sources[part], self.device), pad_rows(tokens, self.device)
            weights = source_attention_weights(member.model, *rows, layer=layer, head=head)
            attention += [row[len(start) - 1 :] for row in weights]
        return [
            Alignment(
                [tokenizers.source.token_text(token) for token in source],
                [tokenizers.target.token_text(token) for token in target],
                weights,
            )
            for source, target, weights in zip(sources, targets, attention, strict=True)
        ]

    # ---- scoring

    @torch.inference_mode()
    def score(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False, progress: ProgressCallback | None = None
    ) -> list[PairScore]:
        """The log-probability of each target, given its source, and of each of its tokens; with shallow fusion, the score by
        which predictions are ranked."""
        scores: list[PairScore] = []
        checked = [
            (check_text(source, f"line {number}"), check_text(target, f"line {number}"))
            for number, (source, target) in enumerate(pairs, 1)
        ]
        refuse(self.invalid_pairs(checked, truncate=truncate), lambda number: f"line {1 + number}")
        target = self.tokenizer.target
        start = target.start_tokens.target
        for low in range(0, len(checked), MAX_BATCH_SOURCES):
            part = checked[low : low + MAX_BATCH_SOURCES]
            sources = [member.sources([source for source, _ in part]) for member in self.members]
            rows = [[*start, *ids.tolist(), target.eos_id] for ids in target.encode_batch([text for _, text in part])]
            tokens, token_mask = pad_rows([np.array(row) for row in rows], self.device)
            values = self.model.score(tokens, token_mask, self._encode(sources, range(len(part)))).double().cpu().tolist()
            for (source, text), row, value in zip(part, rows, values, strict=True):
                log_probs = value[len(start) - 1 : len(row) - 1]
                tokens_text = [target.token_text(token) for token in row[len(start) :]]
                scores.append(PairScore(source, text, sum(log_probs), tokens_text, log_probs))
            if progress is not None:
                progress(len(scores), len(pairs))
        return scores

    # ---- evaluating

    def ensemble_signature(self) -> list[str]:
        """The ensemble, the language model and the engine, for the signature."""
        parts = [f"runs:{len(self.members)}"] if len(self.members) > 1 else []
        parts += [] if self.run.decoder is None else [self.run.decoder.describe()]
        if parts and self.weights is not None:
            parts.append("weights:" + ",".join(f"{weight:g}" for weight in self.weights))
        return [*parts, self.lm.describe()] if self.lm is not None else parts

    def losses(self, pairs: Sequence[tuple[str, str]], *, truncate: bool) -> ItemStatistics:
        """Negative log-likelihood and number of tokens of each target."""
        group, nll, tokens = self.run.group, np.zeros(len(pairs)), np.zeros(len(pairs))
        for low in share(range(0, len(pairs), MAX_BATCH_SOURCES), group):  # the batches of `score`
            scores = self.score(pairs[low : low + MAX_BATCH_SOURCES], truncate=truncate)
            nll[low : low + len(scores)] = [-score.log_prob for score in scores]
            tokens[low : low + len(scores)] = [len(score.tokens) for score in scores]
        return ItemStatistics(np.arange(len(pairs)), {"nats": sum_arrays(nll, group), "tokens": sum_arrays(tokens, group)})
