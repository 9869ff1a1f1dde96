"""Sample outputs of encoder-decoders during training, for the first lines of the validation data."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.tasks.seq2seq.data import references
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job


def translations(job: Job, model: Any, device: torch.device) -> Writer:
    """Greedy outputs for the first lines of the validation data, with their references."""
    from weft.tasks.seq2seq.objective import Seq2SeqObjective

    count, columns = job.config.train.num_samples, job.columns("valid")
    if not columns:
        raise ConfigError("train.num_samples", "requires validation data", "set data.valid")
    valid = job.config.datasets["valid"]
    sources = list(islice(valid.texts("source"), count))
    first_references = [texts[0] for texts in islice(references(valid), count)]
    objective = Seq2SeqObjective(valid=None, tokenizer=job.tokenizer.target, device=device)

    def write(model: Any) -> list[Record]:
        outputs = objective.greedy_outputs(model, columns[0], lines=len(sources))
        return [
            {"line": line, "source": source, "text": text, "reference": reference}
            for line, (source, text, reference) in enumerate(zip(sources, outputs, first_references, strict=False), 1)
        ]

    return write


SAMPLES = Samples(translations)
