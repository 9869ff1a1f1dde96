"""Responses to prompts and conversations, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.data.memory import list_inputs
from weft.decode.options import GenerationConfig, length_problem
from weft.errors import UsageError
from weft.metrics.items import ItemStatistics
from weft.metrics.lm import EvaluationSetup, language_scores
from weft.runs.eval_data import eval_source
from weft.tasks.compare_spec import Compare, Predictions
from weft.tasks.invalid_inputs import mark_invalid, process_valid, read_texts
from weft.tasks.prepare import tokenize
from weft.tasks.responses.data import dialogue_edges, dialogue_lengths
from weft.tasks.responses.template import Template
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Progress, phase, scores_by_name
from weft.text.reading import check_text, pluralize
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.decode.generate import Continuation, ContinueCallback, Frame
    from weft.runs.run import Run
    from weft.tasks.responses.batching import Dialogues

Message = tuple[str, str]  # role (system, user or assistant) and text
COMPARE = Compare(has_outputs=False, model_noun="language model", same_items="use the same data and max_length for both")


class ResponseScore(NamedTuple):
    """The log-probability of a response to a prompt, with that of </s>."""

    text: str
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_prob / len(self.tokens)))


class Responder:
    """A model with its tokenizer and template."""

    def __init__(self, run: Run[str, None]) -> None:
        self.run, self.config = run, run.config
        self.tokenizer: Tokenizer = run.vocabulary

    @cached_property
    def template(self) -> Template:
        template: Template = self.config.data.read_template()
        return template

    @property
    def model(self) -> Any:
        return self.run.model

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of new tokens after an empty prompt; None: no limit."""
        max_positions: int | None = self.model.max_positions
        return None if max_positions is None else max_positions - len(self.tokenizer.encode(self.template.prompt("")))

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_id

    def frame(self, before: Sequence[int] = ()) -> Frame:
        """The tokens around a prompt; `before` are those of earlier turns."""
        from weft.decode.generate import Frame

        return Frame(self.eos_id, [self.tokenizer.bos_id, *before])

    def history(self, prompts: Sequence[str], responses: Sequence[str]) -> list[int]:
        """The tokens of earlier turns, whose prompts are in the template."""
        parts = zip(self.tokenizer.encode_batch(prompts), self.tokenizer.encode_batch(responses), strict=True)
        return [token for prompt, response in parts for token in [*prompt.tolist(), *response.tolist(), self.eos_id]]

    def invalid_prompts(self, prompts: Sequence[str], options: GenerationConfig) -> dict[int, str]:
        """Prompts that are too long for `max_new_tokens`, by number from 0, with the problem."""
        lengths = self.tokenizer.encode_concatenated([self.template.prompt(prompt) for prompt in prompts])[1] + 1
        problems = [length_problem(self.model.max_positions, length, options.max_new_tokens) for length in lengths.tolist()]
        return {number: problem for number, problem in enumerate(problems) if problem is not None}

    def invalid_pairs(self, pairs: Sequence[tuple[str, ...]]) -> dict[int, str]:
        """Pairs that are too long for a model with a limited number of positions, by number from 0, with the problem."""
        limit = self.model.max_positions
        if limit is None:
            return {}
        limit += 1  # the last token needs no position, because it is never read
        prompts, responses = [self.template.prompt(pair[0]) for pair in pairs], [pair[1] for pair in pairs]
        lengths = 2 + np.sum([self.tokenizer.encode_concatenated(texts)[1] for texts in (prompts, responses)], axis=0)
        problem = f"exceed the model's limit of {limit}; shorten it"
        return {int(index): f"{lengths[index]:,} tokens {problem}" for index in np.flatnonzero(lengths > limit)}

    def score(self, pairs: Sequence[tuple[str, ...]]) -> list[ResponseScore]:
        """The log-probability of each response given its prompt."""
        import torch

        from weft.tasks.responses.batching import ResponseBatch, make_row
        from weft.tasks.responses.scoring import token_losses

        scores = []
        for prompt, response in pairs:
            ids = [*self.tokenizer.encode(response).tolist(), self.eos_id]
            row, is_response = make_row([self.tokenizer.encode(self.template.prompt(prompt))], [np.array(ids)])
            tensors = (torch.from_numpy(part)[None].to(self.run.device) for part in (row, is_response))
            with torch.inference_mode():
                losses = token_losses(self.model, ResponseBatch(*tensors))[0, -len(ids) :].double()
            log_probs = (-losses).tolist()
            scores.append(
                ResponseScore(response, sum(log_probs), [self.tokenizer.token_text(token) for token in ids], log_probs)
            )
        return scores


def encode_dialogues(run: Run[str, None], dataset: Any, directory: Path) -> tuple[Dialogues, int]:
    """The examples of a data set, and how many are too long. Token files are written to `directory`."""
    from weft.tasks.responses.batching import Dialogues

    prompts, responses = tokenize(run.spec, run.config, run.vocabulary, dataset, directory)
    edges = dialogue_edges(dataset)
    sizes = dialogue_lengths((prompts, responses), edges)
    members = np.flatnonzero(sizes <= run.config.data.max_length)
    return Dialogues(prompts, responses, edges, members, sizes[members]), len(sizes) - len(members)


def evaluate(run: Run[str, None], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """The loss of the tokens of the responses, by example."""
    from weft.tasks.responses.scoring import response_losses

    dataset = eval_source(run.directory, run.config, data)
    with TemporaryDirectory() as directory:  # a memory map outlives its file
        examples, num_skipped = encode_dialogues(run, dataset, Path(directory))
        nats, counts = response_losses(run.model, examples, run.device, phase(progress, "evaluating"), run.group)
        starts = examples.responses.line_starts()[examples.edges]
        units = {name: values[examples.members] for name, values in examples.responses.units(starts).items()}
    statistics = {"nats": nats, "tokens": counts.astype(np.float64), **units}
    items = ItemStatistics(np.arange(len(nats)), statistics)
    scores = language_scores(items, EvaluationSetup("prompt", "line", run.vocabulary.hash))
    notes = (f"{pluralize(num_skipped, 'example')} longer than data.max_length skipped",) if num_skipped else ()
    details = partial(_predictions, dataset, examples.members, items)
    return Evaluation(scores_by_name(scores), items, details, "examples/s", len(nats), notes=notes)


def _predictions(dataset: Any, members: np.ndarray, items: ItemStatistics) -> Predictions:
    records = list(dataset.records())
    inputs = ["\n".join(records[index].prompts) for index in members.tolist()]
    references = ["\n".join(records[index].responses) for index in members.tolist()]
    return Predictions(items, inputs, references, items.statistics["tokens"].astype(np.int64), "example")


# ---- the functions of the task


def prompt_ids(run: Run[str, None], text: str) -> list[int]:
    """The tokens of a prompt in the template."""
    responder: Responder = run.predictor
    return [responder.tokenizer.bos_id, *responder.tokenizer.encode(responder.template.prompt(text)).tolist()]


def score(run: Run[str, None], pairs: Any, truncate: bool, progress: Progress | None) -> list[ResponseScore | InvalidInput]:
    """The log-probability of each response in (prompt, response) pairs."""
    responder: Responder = run.predictor
    texts = [read_texts(pair, 2, "expected a prompt and a response") for pair in list_inputs(pairs)]
    return process_valid(mark_invalid(texts, responder.invalid_pairs), responder.score)


def unknown_tokens(run: Run[str, None], prompts: Sequence[str]) -> list[str]:
    """The parts of the prompts that become <unk>, in order."""
    tokenizer: Tokenizer = run.vocabulary
    with_unk = [text for text, ids in zip(prompts, tokenizer.encode_batch(prompts), strict=True) if tokenizer.unk_id in ids]
    return tokenizer.unknown_parts(with_unk)


def frame_prompts(run: Run[str, None], prompts: Sequence[str]) -> tuple[list[str], Frame]:
    """The prompts in the template, and the tokens around each."""
    responder: Responder = run.predictor
    texts = [check_text(text, f"prompt {number}") for number, text in enumerate(prompts, 1)]
    return [responder.template.prompt(text) for text in texts], responder.frame()


def generate(
    run: Run[str, None], prompts: str | Sequence[str], options: GenerationConfig, should_continue: ContinueCallback | None
) -> list[list[Continuation]]:
    """Responses to each prompt, or to one string; of beam search, best first."""
    from weft.decode import generate as decoding

    texts, frame = frame_prompts(run, list_inputs(prompts))
    decode = decoding.generate if run.decoder is None else run.decoder.generate
    return decode(run.model, run.vocabulary, texts, options, frame=frame, device=run.device, should_continue=should_continue)


def stream(run: Run[str, None], prompt: str, options: GenerationConfig) -> Iterator[str]:
    """One response as a stream of text."""
    return chat(run, [("user", prompt)], options)


def frame_chat(run: Run[str, None], messages: Sequence[Message], options: GenerationConfig) -> tuple[str, Frame]:
    """The last prompt of a conversation, whose last message is of the user, and the tokens around it, with those of earlier
    turns. If the conversation is too long, its first turns are left out."""
    responder: Responder = run.predictor
    system = check_text(messages[0][1], "system message") if messages and messages[0][0] == "system" else ""
    turns = [check_text(text, f"message {number}") for number, (role, text) in enumerate(messages, 1) if role != "system"]
    roles = [role for role, _ in messages if role != "system"]
    if not turns or messages[-1][0] != "user":
        raise UsageError("messages", "the last message is not of the user")
    if roles[::2] != ["user"] * len(roles[::2]) or roles[1::2] != ["assistant"] * len(roles[1::2]):
        raise UsageError("messages", "the user and the assistant must take turns, the user first")
    if any(role == "system" for role, _ in messages[1:]):
        raise UsageError("messages", "only the first message can be of the system")
    for skipped in range(0, len(turns), 2):
        *earlier, last = responder.template.prompts(system, turns[skipped::2])
        before = responder.history(earlier, turns[skipped + 1 :: 2])
        length = 1 + len(before) + len(run.vocabulary.encode(last)) + options.max_new_tokens
        if length <= run.config.data.max_length:
            break
    return last, responder.frame(before)._replace(left_out=skipped)


def chat(run: Run[str, None], messages: Sequence[Message], options: GenerationConfig) -> Iterator[str]:
    """The response to a conversation, whose last message is of the user, as a stream of text."""
    from weft.decode import generate as decoding

    last, frame = frame_chat(run, messages, options)
    decode = decoding.stream if run.decoder is None else run.decoder.stream
    return decode(run.model, run.vocabulary, last, options, frame=frame, device=run.device)
