"""Other toolkits at the work that seq2seq_speed.py gives weft; run by their own Python, never imported by weft's.

    python benchmarks/_peers.py eole|joey|hf WORK FOLDER SEED

FOLDER has train and test, .source and .target: lines of token numbers between blanks, weft's own, so that everybody
reads the same tokens. The last line on stdout is {"count": ..., "seconds": ...}: target tokens, or sentences, and the
processor's seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

UPDATES, BEFORE, ROWS, BEAM, LENGTH, SENTENCES = 25, 5, 64, 5, 20, 256
BUCKET = 29000  # pairs that are sorted by length together: all
WORDS = 8000  # of the vocabulary; the first three numbers are unknown, <s> and </s>


class Clock:
    """The processor's seconds and the target tokens so far, noted after each step of whatever optimizer is used."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.tokens, self.marks = 0, list[tuple[float, int]]()
        register_optimizer_step_post_hook(lambda *_: self.marks.append((time.process_time(), self.tokens)))

    def found(self) -> dict[str, float]:
        (began, before), (ended, after) = self.marks[BEFORE - 1], self.marks[UPDATES - 1]
        return {"count": after - before, "seconds": ended - began}


def wrap(owner: type, name: str, note: Callable[[Any], None]) -> None:
    """Have `note` see the first argument of every call of a method."""
    inner = getattr(owner, name)

    def outer(self: Any, first: Any, *others: Any, **named: Any) -> Any:
        note(first)
        return inner(self, first, *others, **named)

    setattr(owner, name, outer)


def vocabulary(directory: Path, special: list[str]) -> Path:
    """A file of WORDS lines: the special tokens of a toolkit, then token numbers."""
    file = directory / f"vocabulary.{len(special)}"
    file.write_text("".join(f"{word}\n" for word in [*special, *range(3, WORDS)]))
    return file


# ---- Eole

EOLE_MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        "architecture": "transformer", "layers": 3, "heads": 4, "transformer_ff": 1024,
        "embeddings": {"word_vec_size": 256, "position_encoding_type": "SinusoidalInterleaved"},
    },
    "lstm": {
        "architecture": "rnn", "layers": 1, "rnn_type": "LSTM", "embeddings": {"word_vec_size": 256},
        "encoder": {"encoder_type": "brnn"}, "decoder": {"decoder_type": "rnn", "global_attention": "mlp"},
    },
}  # fmt: skip


def eole(work: str, directory: Path, seed: int) -> dict[str, float]:
    """Buckets of all pairs, sorted by length, batches of ROWS: as Eole is meant to be used. Attention dropout 0, as weft's."""
    from eole.bin.main import main as run
    from eole.trainer import BatchProcessor

    words = str(vocabulary(directory, []))
    training = {
        "batch_type": "sents", "batch_size": ROWS, "bucket_size": BUCKET, "num_workers": 0, "compute_dtype": "fp32",
        "train_steps": UPDATES, "optim": "adam", "learning_rate": 1e-3, "max_grad_norm": 1.0, "label_smoothing": 0.1,
        "dropout": [0.1], "attention_dropout": [0.0], "normalization": "tokens", "save_checkpoint_steps": 1000,
        "model_path": str(directory / f"eole-{work}"),
    }  # fmt: skip
    values = {
        "seed": seed, "overwrite": True, "report_every": 5, "share_vocab": True, "src_vocab": words, "tgt_vocab": words,
        "data": {"train": {"path_src": str(directory / "train.source"), "path_tgt": str(directory / "train.target")}},
        "model": {"hidden_size": 256, "share_embeddings": True, "share_decoder_embeddings": True, **EOLE_MODELS[work]},
        "training": training,
    }  # fmt: skip
    file = directory / f"eole-{work}.yaml"
    file.write_text(json.dumps(values))  # JSON is YAML
    clock = Clock()

    def count(batch: dict[str, Any]) -> None:
        clock.tokens += int((batch["tgtlen"] - 1).sum())  # <s> is not a target

    wrap(BatchProcessor, "process_batch", count)
    sys.argv = ["eole", "train", "-config", str(file)]
    run()
    return clock.found()


# ---- JoeyNMT

JOEY_MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        side: {
            "type": "transformer", "num_layers": 3, "num_heads": 4, "hidden_size": 256, "ff_size": 1024, "dropout": 0.1,
            "embeddings": {"embedding_dim": 256, "scale": True, "dropout": 0.1}, "layer_norm": "pre",
        }
        for side in ("encoder", "decoder")
    },
    "lstm": {
        # each direction has this size: the memory is as wide as Eole's and weft's
        "encoder": {
            "type": "recurrent", "rnn_type": "lstm", "bidirectional": True, "num_layers": 1, "hidden_size": 128,
            "dropout": 0.1, "embeddings": {"embedding_dim": 256, "dropout": 0.1},
        },
        "decoder": {
            "type": "recurrent", "rnn_type": "lstm", "num_layers": 1, "hidden_size": 256, "dropout": 0.1,
            "hidden_dropout": 0.1, "attention": "bahdanau", "init_hidden": "bridge", "input_feeding": True,
            "embeddings": {"embedding_dim": 256, "dropout": 0.1},
        },
    },
}  # fmt: skip


def joey(work: str, directory: Path, seed: int) -> dict[str, float]:
    """Batches of ROWS pairs at random: it sorts none by length. Its Transformer always drops attention weights too."""
    from joeynmt.__main__ import main as run
    from joeynmt.training import TrainManager

    words = str(vocabulary(directory, ["<unk>", "<pad>", "<s>", "</s>"]))
    side = {"level": "word", "lowercase": False, "voc_file": words, "max_length": 1000}
    data = {
        "train": str(directory / "train"), "dev": str(directory / "test"), "dataset_type": "plain", "sample_dev_subset": -1,
        "src": {"lang": "source", **side}, "trg": {"lang": "target", **side},
    }  # fmt: skip
    training = {
        "random_seed": seed, "optimizer": "adam", "normalization": "tokens", "learning_rate": 1e-3, "loss": "crossentropy",
        "label_smoothing": 0.1, "clip_grad_norm": 1.0, "batch_size": ROWS, "batch_type": "sentence", "updates": UPDATES,
        "epochs": 10, "validation_freq": 1000, "logging_freq": 5, "keep_best_ckpts": 0, "num_workers": 0,
        "early_stopping_metric": "loss", "scheduling": "exponential", "decrease_factor": 1.0,
    }  # fmt: skip
    values = {
        "name": work, "joeynmt_version": "2.3.0", "model_dir": str(directory / f"joey-{work}"), "use_cuda": False,
        "fp16": False,
        "data": data, "training": {**training, "overwrite": True},
        "testing": {"beam_size": 1, "batch_size": ROWS},
        "model": {"initializer": "xavier_uniform", "tied_embeddings": True, "tied_softmax": True, **JOEY_MODELS[work]},
    }  # fmt: skip
    file = directory / f"joey-{work}.yaml"
    file.write_text(json.dumps(values))
    clock = Clock()

    def count(batch: Any) -> None:
        clock.tokens += int(batch.ntokens)

    wrap(TrainManager, "_train_step", count)
    sys.argv = ["joeynmt", "train", str(file), "--skip-test"]
    run()
    return clock.found()


# ---- Hugging Face transformers


def hf(work: str, directory: Path, seed: int) -> dict[str, float]:
    """`generate` of a MarianMTModel of the same sizes, weights at random; sorted by length, as weft sorts by itself."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    sources = [[int(word) for word in line.split()] for line in (directory / "test.source").read_text().split("\n")[:SENTENCES]]
    sources.sort(key=len, reverse=True)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 1024))
    }
    config = MarianConfig(
        vocab_size=WORDS + 1, d_model=256, dropout=0.1, activation_function="relu", scale_embedding=True, pad_token_id=WORDS,
        eos_token_id=2, bos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=None, max_position_embeddings=1000,
        **sides,
    )  # fmt: skip
    model = MarianMTModel(config).eval()

    def translate(part: list[list[int]]) -> None:
        width = max(len(source) for source in part)
        rows = torch.tensor([source + [WORDS] * (width - len(source)) for source in part])
        out = model.generate(
            input_ids=rows, attention_mask=(rows != WORDS).long(), num_beams=BEAM, min_new_tokens=LENGTH,
            max_new_tokens=LENGTH, do_sample=False,
        )  # fmt: skip
        if out.shape != (len(part), LENGTH + 1) or (out[:, 1:] == 2).any():
            raise SystemExit(f"hf: wrote {tuple(out.shape)}, not {LENGTH} tokens behind the first")

    translate(sources[:ROWS])
    began = time.process_time()
    for low in range(0, len(sources), ROWS):
        translate(sources[low : low + ROWS])
    return {"count": len(sources), "seconds": time.process_time() - began}


PEERS: dict[str, Callable[[str, Path, int], dict[str, float]]] = {"eole": eole, "joey": joey, "hf": hf}

if __name__ == "__main__":
    _, peer, what, place, number = sys.argv
    print(json.dumps(PEERS[peer](what, Path(place), int(number))))
