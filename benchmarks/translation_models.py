"""Two encoder-decoders for Multi30k, German to English, that the speed of decoding and serving is measured with.

    python benchmarks/translation_models.py [--model small|recommended] [--data DIR] [--output-dir DIR]

- small: 2 layers of 128 units, BPE of 4,000, 900 steps, 1.4 million parameters: as in the first measurements of decoding.
- recommended: the size that `weft init` recommends for this data on a GPU, 4 layers of 256 units, BPE of 8,000, 7.3 million
  parameters, but trained for 700 small batches only. The speed depends on the lengths of outputs, which are right after that;
  BLEU is below that of a whole training (multi30k.py).

Each takes 10 to 20 CPU minutes. Finished runs are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from _common import SHARED_DATA, require_data, train_subprocess

MODELS: dict[str, dict[str, Any]] = {
    "small": {
        "tokenizer": {"type": "bpe", "vocab_size": 4000},
        "model": {"arch": "transformer", "hidden_size": 128, "num_layers": 2},
        "train": {"max_steps": 900, "device": "cpu"},
    },
    "recommended": {
        "tokenizer": {"type": "bpe", "vocab_size": 8000},
        "model": {
            "arch": "transformer",
            "hidden_size": 256,
            "num_layers": 4,
            "num_heads": 4,
            "ffn_dim": 512,
            "position_encoding": "rotary",
            "dropout": 0.1,
        },
        "train": {
            "max_steps": 700,
            "batch_tokens": 2048,
            "optimizer": "muon",
            "lr": 0.002,
            "muon_lr": 0.02,
            "ema_decay": 0.99,
            "num_validations": 2,
            "device": "cpu",
        },
    },
}
STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def train_model(name: str, data: Path, output_dir: Path) -> Path:
    """The run directory of a model, which is trained unless it exists."""
    files = {
        split: [str((data / f"{stem}.{language}.gz").resolve()) for language in ("de", "en")] for split, stem in STEMS.items()
    }
    train_subprocess({"task": "seq2seq", "seed": 1, "data": files, **MODELS[name]}, output_dir / name, threads=1)
    return output_dir / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/translation"))
    args = parser.parse_args()
    require_data(parser, args.data)
    for name in args.model or MODELS:
        print(train_model(name, args.data, args.output_dir))


if __name__ == "__main__":
    main()
