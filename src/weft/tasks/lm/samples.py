"""What language models write while they are trained: continuations of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.data.bos import read_bos
from weft.decode.options import GenerationConfig
from weft.errors import ConfigError
from weft.text.reading import check_text
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job


def continuations(job: Job, model: Any, device: torch.device) -> Writer:
    """Continuations of each prompt, by the run's seed: the same numbers are drawn at each validation."""
    from weft.decode.generate import Frame, generate

    config, tokenizer = job.config, job.tokenizer
    prompts = [check_text(text, f"train.sample_prompts, {at}") for at, text in enumerate(config.train.sample_prompts, 1)] or [
        ""
    ]
    length, max_length = config.train.sample_max_new_tokens, model.max_positions
    opening = read_bos(job.directory.path, tokenizer)
    if max_length is not None:
        read = len(opening) + max(len(tokenizer.encode(prompt)) for prompt in prompts)
        if read > max_length:
            seen = f"the longest has {read - len(opening)} tokens, but the model reads at most {max_length - len(opening)}"
            raise ConfigError("train.sample_prompts", f"{seen}", "shorten it")
        length = min(length, max_length + 1 - read)  # the last token is never read
    options = GenerationConfig(max_new_tokens=length, num_samples=config.train.num_samples, seed=config.seed)
    frame = Frame(tokenizer.eos_id if config.data.read_as == "lines" else None, opening)

    def write(model: Any) -> list[Record]:
        found = generate(model, tokenizer, prompts, options, frame=frame, device=device)
        return [
            {"prompt": prompt, "sample": number, "text": one.text, "seed": config.seed}
            for prompt, own in zip(prompts, found, strict=True)
            for number, one in enumerate(own, 1)
        ]

    return write


SAMPLES = Samples(continuations, prompts=True)
