"""Sample outputs during training: responses to prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.decode.options import GenerationConfig
from weft.tasks.responses.template import Template
from weft.text.reading import check_text
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job

NUM_PROMPTS = 3  # of the validation or training data, if the run file names none


def responses(job: Job, model: Any, device: torch.device, *, prompt_of: Callable[[Any, Template], tuple[str, str]]) -> Writer:
    """Responses to each prompt, with the seed of the run: every validation uses the same random numbers. `prompt_of` is the
    prompt of a record, as it is shown and in the template."""
    from weft.decode.generate import Frame, generate

    config, tokenizer, template = job.config, job.tokenizer, job.config.data.read_template()
    given = [check_text(text, f"train.sample_prompts: {index}") for index, text in enumerate(config.train.sample_prompts, 1)]
    pairs = [(prompt, template.prompt(prompt)) for prompt in given]
    if not pairs:
        dataset = config.datasets["valid" if "valid" in config.datasets else "train"]
        pairs = [prompt_of(record, template) for record in islice(dataset.records(), NUM_PROMPTS)]
    prompts, texts = zip(*pairs, strict=True)
    max_new_tokens = config.train.sample_max_new_tokens
    if model.max_positions is not None:
        longest = 1 + max(len(tokenizer.encode(text)) for text in texts)
        max_new_tokens = max(1, min(max_new_tokens, model.max_positions + 1 - longest))
    options = GenerationConfig(max_new_tokens=max_new_tokens, num_samples=config.train.num_samples, seed=config.seed)
    frame = Frame(tokenizer.eos_id, [tokenizer.bos_id])

    def write(model: Any) -> list[Record]:
        continuations = generate(model, tokenizer, list(texts), options, frame=frame, device=device)
        return [
            {"prompt": prompt, "sample": number, "text": sample.text, "seed": config.seed}
            for prompt, samples in zip(prompts, continuations, strict=True)
            for number, sample in enumerate(samples, 1)
        ]

    return write


# of instructions, whose first prompt is in the template, and of tables with prompts
SAMPLES = Samples(partial(responses, prompt_of=lambda record, template: (record.prompts[0],) * 2), prompts=True)
PROMPT_SAMPLES = Samples(
    partial(responses, prompt_of=lambda record, template: (record.texts[0], template.prompt(record.texts[0]))), prompts=True
)
