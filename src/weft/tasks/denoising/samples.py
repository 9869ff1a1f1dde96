"""Sample outputs of denoising during training: the first validation texts, corrupted and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import ConfigError
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job


def restored_texts(job: Job, model: Any, device: torch.device) -> Writer:
    """Greedy restorations of the first validation texts, with the noise of validation."""
    from weft.data.noise import fill_sentinels
    from weft.decode.predict import PredictionRequest, predict
    from weft.decode.predict_options import PredictionConfig
    from weft.tasks.denoising.batching import NoisyTexts
    from weft.tasks.denoising.corruption import Corrupter
    from weft.tasks.encoder_decoder.pair_batch import pad_rows
    from weft.text.noise_tokenizer import NoiseTokenizer

    columns, config, plain = job.columns("valid"), job.config.data, job.tokenizer
    if not columns:
        raise ConfigError("train.num_samples", "requires validation data", "set data.valid")
    noisy, tokenizer = NoisyTexts(columns[0], Corrupter(config, plain)), NoiseTokenizer(plain, config.num_sentinels or 0)
    members = np.arange(min(job.config.train.num_samples, columns[0].lines))
    corrupted = noisy.corrupted(members)
    sources = [np.append(source, plain.eos_id) for source in corrupted.source.split()]
    texts = [plain.decode(text) for text in noisy.texts(members).split()]

    def write(model: Any) -> list[Record]:
        request = PredictionRequest(
            model,
            tokenizer,
            lambda rows: model.encode(*pad_rows([sources[row] for row in rows], device)),
            list(map(len, sources)),
            [[]] * len(sources),
            device,
            suppressed_tokens=() if config.num_sentinels else (plain.vocab_size,),
        )
        outputs = [ranked[0] for ranked in predict(request, PredictionConfig(beam_size=1))]
        restored = [output.text for output in outputs]
        if config.num_sentinels:
            pairs = zip(sources, outputs, strict=True)
            restored = [
                plain.decode(fill_sentinels(source.tolist(), output.token_ids, plain.vocab_size)) for source, output in pairs
            ]
        rows = zip(map(tokenizer.decode, sources), restored, texts, strict=True)
        return [
            {"line": line, "source": source, "text": text, "reference": reference}
            for line, (source, text, reference) in enumerate(rows, 1)
        ]

    return write


SAMPLES = Samples(restored_texts)
