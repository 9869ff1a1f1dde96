"""CTranslate2 as the engine that decodes a run: a `weft.decode.decoder.Decoder`.

Outputs and scores are those of weft. CTranslate2 has some differences, and an input that they concern is decoded by weft:

- It renormalizes probabilities if tokens are suppressed; weft does not. Here, tokens that weft never generates end a
  hypothesis, and the search goes on without it. Patience counts it, though: then the input is decoded again.
- Its beam search after a forced prefix leaves out hypotheses. Greedy search is right.
- Positions end with the exported table, and a prompt longer than the context is read without the context limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from weft.decode import generate as generation
from weft.decode import predict as prediction
from weft.decode.decoder import Decoder
from weft.decode.detokenize import StreamingText, TokenDecoder, decode_until_stop
from weft.decode.generate import Continuation, ContinueCallback, Frame
from weft.decode.options import GenerationConfig, resolve_patience
from weft.decode.predict import PredictionRequest, max_new_tokens_for
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.interop.ctranslate2_cache import with_model_dir
from weft.interop.ctranslate2_export import (
    NAME,
    check_package,
    check_quantization,
    check_run,
    num_positions,
    open_model,
    vocabularies_of,
)
from weft.interop.ctranslate2_options import translates
from weft.runs.run import AnyRun

MAX_BATCH = 64  # texts decoded at once
NUM_PER_CALL = 512  # texts between two reports of progress
EXHAUSTIVE = 10**6  # patience of a search that ends at the maximum length, when none can be better
INPUT_ENCODINGS = ("none", "sinusoidal")  # positions of a table that weft computes without a limit


def open_decoder(run: AnyRun, quantization: str | None) -> Decoder:
    """The decoder of a run. The model is exported into the run directory if that has not happened yet."""
    name = quantization or "float32"
    check_quantization(name)
    check_package()
    check_run(run, "engine")
    device, threads = run.device.type, torch.get_num_threads()
    model = with_model_dir(run, name, lambda path: open_model(run, path, name, device=device, threads=threads))
    return CTranslate2Decoder(run, model, name)


def _refuse(option: str, fix: str = "") -> UsageError:
    return UsageError(option, f"not available with `engine` {NAME!r}", fix or "use `engine` 'torch'")


class _Hypothesis(NamedTuple):
    tokens: list[int]  # generated, with EOS
    log_prob: float


class _Search(NamedTuple):
    """The options of one call."""

    beam_size: int
    length_penalty: float
    n_best: int
    patience: float
    min_new_tokens: int
    banned_tokens: frozenset[int]
    eos_id: int

    def score(self, hypothesis: _Hypothesis) -> float:
        score: float = hypothesis.log_prob / len(hypothesis.tokens) ** self.length_penalty
        return score

    def is_allowed(self, tokens: Sequence[int]) -> bool:
        """Whether weft can generate these tokens."""
        is_too_short = tokens[-1:] == [self.eos_id] and len(tokens) <= self.min_new_tokens
        return bool(tokens) and not is_too_short and self.banned_tokens.isdisjoint(tokens)

    @property
    def num_hypotheses(self) -> int:
        """The number of hypotheses to ask for: as many as end the search, if their number ends it. If weft allows all of them,
        its own search ends at the same step."""
        if self.beam_size == 1:
            return 1
        return self.beam_size if self.patience == EXHAUSTIVE else math.floor(self.beam_size * self.patience)

    def best(self, hypotheses: Sequence[_Hypothesis]) -> list[_Hypothesis] | None:
        """The n best of the hypotheses that CTranslate2 returned, best first; None if weft might find others."""
        allowed = [hypothesis for hypothesis in hypotheses if self.is_allowed(hypothesis.tokens)]
        is_complete = len(allowed) >= self.n_best or len(hypotheses) < self.num_hypotheses
        is_exact = len(allowed) == len(hypotheses) or (self.beam_size > 1 and self.patience == EXHAUSTIVE and is_complete)
        return allowed[: self.n_best] if allowed and is_exact else None


def _subset(request: PredictionRequest, rows: Sequence[int]) -> PredictionRequest:
    """Some of the sources of a request."""
    return request._replace(
        encode=lambda selected: request.encode([rows[index] for index in selected]),
        lengths=[request.lengths[row] for row in rows],
        prefixes=[request.prefixes[row] for row in rows],
        indices=None if request.indices is None else [request.indices[row] for row in rows],
        sources=[request.sources[row] for row in rows],
    )


class CTranslate2Decoder:
    """A run as a `ctranslate2.Translator` or `ctranslate2.Generator`."""

    def __init__(self, run: AnyRun, model: Any, quantization: str) -> None:
        self.model, self.quantization = model, quantization
        self.names = vocabularies_of(run)
        self.target_ids = {name: token_id for token_id, name in enumerate(self.names.target)}
        stack = run.config.model.decoder if translates(run.config) else run.config.model
        self.max_positions = num_positions(run)[1] if stack.position_encoding in INPUT_ENCODINGS else None
        self.context_length = None if translates(run.config) else run.model.context_length

    def describe(self) -> str:
        return f"engine:{NAME}-{self.quantization}"

    def _has_room(self, prompt_length: int, max_new_tokens: int) -> bool:
        """Whether the table of positions is long enough; the last token needs no position."""
        return self.max_positions is None or prompt_length + max_new_tokens - 1 <= self.max_positions

    def _end_tokens(self, search: _Search) -> list[str]:
        """The tokens that end a hypothesis: EOS, and those that are never generated."""
        return [self.names.target[token_id] for token_id in sorted({search.eos_id, *search.banned_tokens})]

    # ---- encoder-decoders

    def predict(
        self, request: PredictionRequest, options: PredictionConfig, *, progress: Callable[[int, int], None] | None = None
    ) -> list[list[Prediction]]:
        search = _prediction_search(request, options)
        results: dict[int, list[Prediction]] = {}
        for limit, prefix_length, rows in self._groups(request, options, search):
            outputs = zip(rows, self._translate(request, search, rows, limit, prefix_length), strict=True)
            results |= {
                row: [_prediction(request, search, row, hypothesis) for hypothesis in best]
                for row, best in outputs
                if best is not None
            }
            if progress is not None:
                progress(len(results), len(request.lengths))
        rest = [row for row in range(len(request.lengths)) if row not in results]
        if rest:
            results |= zip(rest, prediction.predict(_subset(request, rest), options), strict=True)
        return [results[row] for row in range(len(request.lengths))]

    def _groups(
        self, request: PredictionRequest, options: PredictionConfig, search: _Search
    ) -> Iterator[tuple[int, int, list[int]]]:
        """The sources that CTranslate2 decodes, by the maximum length of the output and the length of the prefix: one call has
        one maximum, which includes the prefix."""
        groups = defaultdict[tuple[int, int], list[int]](list)
        for row in range(len(request.lengths)):
            limit, prompt_length = max_new_tokens_for(request, row, options), len(request.prompt(row))
            is_exact = search.beam_size == 1 or (
                prompt_length == 1 and not options.banned_tokens and not options.min_new_tokens
            )
            if is_exact and self._has_room(prompt_length, limit):
                groups[limit, prompt_length - 1].append(row)
        for (limit, prefix_length), rows in groups.items():
            for low in range(0, len(rows), NUM_PER_CALL):
                yield limit, prefix_length, rows[low : low + NUM_PER_CALL]

    def _translate(
        self, request: PredictionRequest, search: _Search, rows: Sequence[int], limit: int, prefix_length: int
    ) -> list[list[_Hypothesis] | None]:
        """The best outputs of each source; None for a source that weft must decode."""
        results = self.model.translate_batch(
            [[self.names.source[token_id] for token_id in request.sources[row][0]] for row in rows],
            target_prefix=[[self.names.target[token_id] for token_id in request.prompt(row)[1:]] for row in rows],
            max_batch_size=MAX_BATCH,
            beam_size=search.beam_size,
            patience=search.patience,
            num_hypotheses=search.num_hypotheses,
            length_penalty=search.length_penalty,
            min_decoding_length=0,  # 1, the default, renormalizes the first step
            max_decoding_length=limit + prefix_length,
            max_input_length=0,
            end_token=self._end_tokens(search),
            return_end_token=True,  # it counts in the length
            return_scores=True,
        )
        outputs = list[list[_Hypothesis] | None]()
        for result in results:
            hypotheses = list[_Hypothesis]()
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self.target_ids[token] for token in tokens]
                hypotheses.append(_Hypothesis(ids[prefix_length:], score * len(ids) ** search.length_penalty))
            outputs.append(search.best(hypotheses))
        return outputs

    # ---- language models

    def generate(
        self,
        model: Any,
        tokenizer: TokenDecoder,
        prompts: Sequence[str],
        options: GenerationConfig,
        *,
        frame: Frame,
        device: torch.device | str = "cpu",
        should_continue: ContinueCallback | None = None,
    ) -> list[list[Continuation]]:
        search = _generation_search(tokenizer, frame, options)
        job = generation.Job(model, tokenizer, options, frame, torch.device(device))
        tokens = [generation.encode_prompt(job, prompt) for prompt in prompts]
        results: dict[int, list[Continuation]] = {}
        groups = defaultdict[int, list[int]](list)  # by length: a prompt longer than others in its batch gets a forced prefix
        for row, prompt in enumerate(tokens):
            if self._fits(prompt, options):
                groups[len(prompt)].append(row)
        continue_prompts = self._continue_until_stop if options.stop else self._continue
        for rows in groups.values():
            outputs = continue_prompts(tokenizer, [tokens[row] for row in rows], options, search)
            results |= {row: output for row, output in zip(rows, outputs, strict=True) if output is not None}
        rest = [row for row in range(len(prompts)) if row not in results]
        if rest:
            texts = [prompts[row] for row in rest]
            others = generation.generate(
                model, tokenizer, texts, options, frame=frame, device=device, should_continue=should_continue
            )
            results |= zip(rest, others, strict=True)
        return [results[row] for row in range(len(prompts))]

    def stream(
        self,
        model: Any,
        tokenizer: TokenDecoder,
        prompt: str,
        options: GenerationConfig,
        *,
        frame: Frame,
        device: torch.device | str = "cpu",
    ) -> Iterator[str]:
        """One chunk."""
        return iter([self.generate(model, tokenizer, [prompt], options, frame=frame, device=device)[0][0].text])

    def _fits(self, prompt: Sequence[int], options: GenerationConfig) -> bool:
        is_short = self.context_length is None or len(prompt) <= self.context_length
        return is_short and self._has_room(len(prompt), options.max_new_tokens)

    def _arguments(self, prompts: Sequence[Sequence[int]], options: GenerationConfig, search: _Search) -> dict[str, Any]:
        """The arguments of `generate_batch` that greedy search and beam search share."""
        return {
            "start_tokens": [[self.names.target[token_id] for token_id in prompt] for prompt in prompts],
            "max_batch_size": MAX_BATCH,
            "min_length": 0,
            "max_length": options.max_new_tokens,
            "include_prompt_in_result": False,
            "end_token": self._end_tokens(search),
            "return_end_token": True,
            "return_scores": True,
        }

    def _continue(
        self, tokenizer: TokenDecoder, prompts: Sequence[Sequence[int]], options: GenerationConfig, search: _Search
    ) -> list[list[Continuation] | None]:
        """Beam search; None for a prompt that weft must continue."""
        results = self.model.generate_batch(
            **self._arguments(prompts, options, search),
            beam_size=search.beam_size,
            patience=search.patience,
            num_hypotheses=search.num_hypotheses,
            length_penalty=search.length_penalty,
        )
        outputs = list[list[Continuation] | None]()
        for prompt, result in zip(prompts, results, strict=True):
            pairs = zip(result.sequences_ids, result.scores, strict=True)
            hypotheses = [_Hypothesis(ids, score * len(ids) ** search.length_penalty) for ids, score in pairs]
            best = search.best(hypotheses)
            if best is None:
                outputs.append(None)
                continue
            continuations = list[Continuation]()
            for hypothesis in best:
                text, _ = decode_until_stop(tokenizer, prompt, hypothesis.tokens, ())
                continuations.append(_continuation(text, hypothesis, search))
            outputs.append(continuations)
        return outputs

    def _continue_until_stop(
        self, tokenizer: TokenDecoder, prompts: Sequence[Sequence[int]], options: GenerationConfig, search: _Search
    ) -> list[list[Continuation] | None]:
        """Greedy search that ends at a stop string; None for a prompt that weft must continue."""
        outputs = list[list[Continuation] | None]()
        for low in range(0, len(prompts), MAX_BATCH):
            part = prompts[low : low + MAX_BATCH]
            texts = [StreamingText(tokenizer, prompt, options.stop) for prompt in part]
            chunks, hypotheses = [list[str]() for _ in part], [_Hypothesis([], 0.0) for _ in part]

            def push(
                step: Any,
                texts: list[StreamingText] = texts,
                chunks: list[list[str]] = chunks,
                hypotheses: list[_Hypothesis] = hypotheses,
            ) -> bool:
                row = int(step.batch_id)
                tokens, log_prob = hypotheses[row]
                hypotheses[row] = _Hypothesis([*tokens, step.token_id], log_prob + step.log_prob)
                chunks[row].append(texts[row].push(step.token_id))
                return texts[row].has_stopped

            self.model.generate_batch(**self._arguments(part, options, search), beam_size=1, length_penalty=0, callback=push)
            for text, text_chunks, hypothesis in zip(texts, chunks, hypotheses, strict=True):
                if not search.is_allowed(hypothesis.tokens):
                    outputs.append(None)
                    continue
                continuation = _continuation("".join([*text_chunks, text.finish()]), hypothesis, search)
                outputs.append([continuation._replace(finish_reason="stop") if text.has_stopped else continuation])
        return outputs


def _continuation(text: str, hypothesis: _Hypothesis, search: _Search) -> Continuation:
    reason: Literal["eos", "length"] = "eos" if hypothesis.tokens[-1] == search.eos_id else "length"
    return Continuation(text, hypothesis.tokens, search.score(hypothesis), hypothesis.log_prob, reason)


def _prediction(request: PredictionRequest, search: _Search, row: int, hypothesis: _Hypothesis) -> Prediction:
    prefix, tokens = request.prefixes[row], hypothesis.tokens
    text = request.tokenizer.decode([*prefix, *tokens])
    return Prediction(text, tokens, search.score(hypothesis), hypothesis.log_prob, prefix, tokens[-1] != search.eos_id)


# ---- the options


def _prediction_search(request: PredictionRequest, options: PredictionConfig) -> _Search:
    """The options of a prediction. A temperature of 0 is greedy search."""
    if options.is_sampling and options.temperature != 0:
        option = next(name for name in ("temperature", "top_k", "top_p", "num_samples") if name in options.model_fields_set)
        raise _refuse(option, "use `engine` 'torch', whose samples depend on `seed` alone")
    prediction.check_min_new_tokens(request, options)
    return _Search(
        beam_size=1 if options.is_sampling else options.resolved_beam_size,
        length_penalty=0.0 if options.is_sampling else options.resolved_length_penalty,
        n_best=options.n_best,
        patience=options.resolved_patience or EXHAUSTIVE,
        min_new_tokens=options.min_new_tokens,
        banned_tokens=frozenset(prediction.banned_tokens(request, options)),
        eos_id=request.tokenizer.eos_id,
    )


def _generation_search(tokenizer: TokenDecoder, frame: Frame, options: GenerationConfig) -> _Search:
    """The options of a continuation: greedy search or beam search."""
    if options.beam_size is None and options.temperature != 0:
        fix = "set `temperature` 0 or `beam_size`, or use `engine` 'torch', whose samples depend on `seed` alone"
        raise UsageError("engine", f"{NAME!r} does not sample", fix)
    if options.repetition_penalty > 1:
        raise _refuse("repetition_penalty")
    if options.no_repeat_ngram_size is not None:
        raise _refuse("no_repeat_ngram_size")
    if options.stop and options.beam_size is not None:
        raise _refuse("stop", "use `temperature` 0 instead of `beam_size`, or `engine` 'torch'")
    banned_tokens = [tokenizer.unk_id, tokenizer.bos_id]
    return _Search(
        beam_size=options.beam_size or 1,
        length_penalty=options.length_penalty or 0.0,
        n_best=options.n_best,
        patience=resolve_patience(options.patience, options.length_penalty or 0.0) or EXHAUSTIVE,
        min_new_tokens=options.min_new_tokens,
        # running text has no end, and CTranslate2 stops there
        banned_tokens=frozenset([*banned_tokens, tokenizer.eos_id] if frame.eos_id is None else banned_tokens),
        eos_id=tokenizer.eos_id,
    )
