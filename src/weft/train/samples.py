"""Text that a model writes at each validation (train.samples): kept in samples.jsonl, so that its progress can be read.

Nothing that is drawn here comes from torch's generators: a run with samples is trained as one without, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from weft.data.opening import read_opening
from weft.decode.generate import Frame, generate
from weft.decode.options import GenerateOptions
from weft.errors import ConfigError
from weft.tasks.seq2seq.network import translation_task
from weft.text.gate import clean

if TYPE_CHECKING:
    from weft.runs.job import Job
    from weft.runs.settings import Settings

FILE = "samples.jsonl"
Record = dict[str, Any]
Writer = Callable[[Any], list[Record]]  # what a model writes now, a record a text, without the step


def _continuations(job: Job, model: Any, device: torch.device) -> Writer:
    """Continuations of each prompt, by the run's seed: the same numbers are drawn at each validation."""
    settings, tokenizer = job.settings, job.tokenizer
    prompts = [clean(text, f"train.sample_prompts, {at}") for at, text in enumerate(settings.train.sample_prompts, 1)] or [""]
    length, longest = settings.train.sample_length, model.longest
    opening = read_opening(job.folder.path, tokenizer)
    if longest is not None:
        read = len(opening) + max(len(tokenizer.encode(prompt)) for prompt in prompts)
        if read > longest:
            seen = f"the longest has {read - len(opening)} tokens, but the model reads at most {longest - len(opening)}"
            raise ConfigError(f"train.sample_prompts: {seen}; shorten it")
        length = min(length, longest + 1 - read)  # the last token is never read
    options = GenerateOptions(length=length, samples=settings.train.samples, seed=settings.seed)
    frame = Frame(tokenizer.end if settings.data.read == "lines" else None, opening)

    def write(model: Any) -> list[Record]:
        found = generate(model, tokenizer, prompts, options, frame=frame, device=device)
        return [
            {"prompt": prompt, "sample": number, "text": one.text, "seed": settings.seed}
            for prompt, own in zip(prompts, found, strict=True)
            for number, one in enumerate(own, 1)
        ]

    return write


def _translations(job: Job, model: Any, device: torch.device) -> Writer:
    """Greedy outputs for the first lines of the validation data, which say what was meant."""
    task, count = translation_task(job), job.settings.train.samples
    if task.valid is None:
        raise ConfigError("train.samples: are of the validation data, but data.valid is not given; give it, or drop samples")
    sources = list(islice(job.settings.datasets["valid"].texts("source"), count))
    held = task.valid

    def write(model: Any) -> list[Record]:
        written = task.write(model, held.source, lines=len(sources))
        return [
            {"line": line, "source": source, "text": text, "reference": references[0]}
            for line, (source, text, references) in enumerate(zip(sources, written, held.references, strict=False), 1)
        ]

    return write


# tasks whose models write text
WRITERS: dict[str, Callable[[Job, Any, torch.device], Writer]] = {"lm": _continuations, "translate": _translations}


def check(settings: Settings) -> None:
    """Refuse samples of models that write nothing."""
    if settings.train.samples and settings.task not in WRITERS:
        raise ConfigError(
            f"train.samples: a run of task {settings.task!r} writes no text; drop it (tasks that do: {', '.join(WRITERS)})"
        )
    if settings.train.sample_prompts and settings.task != "lm":
        raise ConfigError("train.sample_prompts: are continued by language models; a run of task 'translate' has sources")


def writer(job: Job, model: Any, device: torch.device) -> Writer | None:
    """What writes the samples of a run; None where none are asked for."""
    return WRITERS[job.settings.task](job, model, device) if job.settings.train.samples else None
