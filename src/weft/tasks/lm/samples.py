"""What language models write while they are trained: continuations of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.data.opening import read_opening
from weft.decode.options import GenerateOptions
from weft.errors import ConfigError
from weft.text.gate import clean
from weft.train.samples import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job


def continuations(job: Job, model: Any, device: torch.device) -> Writer:
    """Continuations of each prompt, by the run's seed: the same numbers are drawn at each validation."""
    from weft.decode.generate import Frame, generate

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


SAMPLES = Samples(continuations, prompts=True)
