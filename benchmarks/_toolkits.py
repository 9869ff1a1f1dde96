"""The workloads of seq2seq_speed.py in other toolkits. Runs in the Python environment of the toolkit, without weft.

    python benchmarks/_toolkits.py eole|joey|hf WORKLOAD DIR SEED

DIR contains {train,test}.{source,target}: lines of space-separated token IDs of weft's tokenizer, so that all toolkits read the
same tokens. The last line on stdout is {"count": ..., "seconds": ...}: target tokens or sentences, and CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS, WARMUP_STEPS, BATCH_SIZE = 25, 5, 64
BEAM_SIZE, NEW_TOKENS, NUM_SENTENCES = 5, 20, 256
BUCKET_SIZE = 29000  # pairs that are sorted by length at once: all of them
VOCAB_SIZE = 8000  # IDs 0, 1 and 2 are <unk>, <s> and </s>
EOS_ID = 2


class Clock:
    """Records CPU seconds and the number of target tokens after each step of any optimizer."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.tokens, self.marks = 0, list[tuple[float, int]]()
        register_optimizer_step_post_hook(lambda *_: self.marks.append((time.process_time(), self.tokens)))

    def result(self) -> dict[str, float]:
        (start, start_tokens), (end, end_tokens) = self.marks[WARMUP_STEPS - 1], self.marks[STEPS - 1]
        return {"count": end_tokens - start_tokens, "seconds": end - start}


def observe(owner: type, name: str, observer: Callable[[Any], None]) -> None:
    """Call `observer` with the first argument of every call of a method."""
    method = getattr(owner, name)

    def wrapper(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        observer(first)
        return method(self, first, *args, **kwargs)

    setattr(owner, name, wrapper)


def write_vocab(directory: Path, special_tokens: list[str]) -> Path:
    """Write a vocabulary file: the special tokens of a toolkit, then token IDs."""
    path = directory / f"vocabulary.{len(special_tokens)}"
    path.write_text("".join(f"{token}\n" for token in [*special_tokens, *range(3, VOCAB_SIZE)]))
    return path


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


def train_eole(workload: str, directory: Path, seed: int) -> dict[str, float]:
    """Batches of pairs of similar length, Eole's recommended setup. Attention dropout is 0, as in weft."""
    from eole.bin.main import main
    from eole.trainer import BatchProcessor

    vocab_file = str(write_vocab(directory, []))
    training = {
        "batch_type": "sents", "batch_size": BATCH_SIZE, "bucket_size": BUCKET_SIZE, "num_workers": 0, "compute_dtype": "fp32",
        "train_steps": STEPS, "optim": "adam", "learning_rate": 1e-3, "max_grad_norm": 1.0, "label_smoothing": 0.1,
        "dropout": [0.1], "attention_dropout": [0.0], "normalization": "tokens", "save_checkpoint_steps": 1000,
        "model_path": str(directory / f"eole-{workload}"),
    }  # fmt: skip
    config = {
        "seed": seed, "overwrite": True, "report_every": 5, "share_vocab": True, "src_vocab": vocab_file,
        "tgt_vocab": vocab_file,
        "data": {"train": {"path_src": str(directory / "train.source"), "path_tgt": str(directory / "train.target")}},
        "model": {"hidden_size": 256, "share_embeddings": True, "share_decoder_embeddings": True, **EOLE_MODELS[workload]},
        "training": training,
    }  # fmt: skip
    config_file = directory / f"eole-{workload}.yaml"
    config_file.write_text(json.dumps(config))  # JSON is YAML
    clock = Clock()

    def count_tokens(batch: dict[str, Any]) -> None:
        clock.tokens += int((batch["tgtlen"] - 1).sum())  # <s> is not a target

    observe(BatchProcessor, "process_batch", count_tokens)
    sys.argv = ["eole", "train", "-config", str(config_file)]
    main()
    return clock.result()


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
        # size of each direction: the encoder output has 256 dimensions, as in Eole and weft
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


def train_joey(workload: str, directory: Path, seed: int) -> dict[str, float]:
    """Random batches: JoeyNMT does not sort by length. Its Transformer always has attention dropout."""
    from joeynmt.__main__ import main
    from joeynmt.training import TrainManager

    vocab_file = str(write_vocab(directory, ["<unk>", "<pad>", "<s>", "</s>"]))
    side_options = {"level": "word", "lowercase": False, "voc_file": vocab_file, "max_length": 1000}
    data = {
        "train": str(directory / "train"), "dev": str(directory / "test"), "dataset_type": "plain", "sample_dev_subset": -1,
        "src": {"lang": "source", **side_options}, "trg": {"lang": "target", **side_options},
    }  # fmt: skip
    training = {
        "random_seed": seed, "optimizer": "adam", "normalization": "tokens", "learning_rate": 1e-3, "loss": "crossentropy",
        "label_smoothing": 0.1, "clip_grad_norm": 1.0, "batch_size": BATCH_SIZE, "batch_type": "sentence", "updates": STEPS,
        "epochs": 10, "validation_freq": 1000, "logging_freq": 5, "keep_best_ckpts": 0, "num_workers": 0,
        "early_stopping_metric": "loss", "scheduling": "exponential", "decrease_factor": 1.0,
    }  # fmt: skip
    config = {
        "name": workload, "joeynmt_version": "2.3.0", "model_dir": str(directory / f"joey-{workload}"), "use_cuda": False,
        "fp16": False,
        "data": data, "training": {**training, "overwrite": True},
        "testing": {"beam_size": 1, "batch_size": BATCH_SIZE},
        "model": {"initializer": "xavier_uniform", "tied_embeddings": True, "tied_softmax": True, **JOEY_MODELS[workload]},
    }  # fmt: skip
    config_file = directory / f"joey-{workload}.yaml"
    config_file.write_text(json.dumps(config))
    clock = Clock()

    def count_tokens(batch: Any) -> None:
        clock.tokens += int(batch.ntokens)

    observe(TrainManager, "_train_step", count_tokens)
    sys.argv = ["joeynmt", "train", str(config_file), "--skip-test"]
    main()
    return clock.result()


# ---- Hugging Face transformers


def decode_hf(workload: str, directory: Path, seed: int) -> dict[str, float]:
    """`generate` of a randomly initialized MarianMTModel of the same size, on sources sorted by length, as weft does."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    lines = (directory / "test.source").read_text().split("\n")[:NUM_SENTENCES]
    sources = [[int(token_id) for token_id in line.split()] for line in lines]
    sources.sort(key=len, reverse=True)
    sizes: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 1024))
    }
    config = MarianConfig(
        vocab_size=VOCAB_SIZE + 1, d_model=256, dropout=0.1, activation_function="relu", scale_embedding=True,
        pad_token_id=VOCAB_SIZE, eos_token_id=EOS_ID, bos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=None,
        max_position_embeddings=1000, **sizes,
    )  # fmt: skip
    model: Any = MarianMTModel(config)
    model.eval()

    def translate(batch: list[list[int]]) -> None:
        length = max(len(source) for source in batch)
        rows = torch.tensor([source + [VOCAB_SIZE] * (length - len(source)) for source in batch])
        output = model.generate(
            input_ids=rows, attention_mask=(rows != VOCAB_SIZE).long(), num_beams=BEAM_SIZE, min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS, do_sample=False,
        )  # fmt: skip
        if output.shape != (len(batch), NEW_TOKENS + 1) or (output[:, 1:] == EOS_ID).any():
            raise SystemExit(f"hf: output of shape {tuple(output.shape)}; expected {NEW_TOKENS} new tokens per sentence")

    translate(sources[:BATCH_SIZE])
    start = time.process_time()
    for i in range(0, len(sources), BATCH_SIZE):
        translate(sources[i : i + BATCH_SIZE])
    return {"count": len(sources), "seconds": time.process_time() - start}


TOOLKITS: dict[str, Callable[[str, Path, int], dict[str, float]]] = {
    "eole": train_eole,
    "joey": train_joey,
    "hf": decode_hf,
}

if __name__ == "__main__":
    _, toolkit_arg, workload_arg, directory_arg, seed_arg = sys.argv
    print(json.dumps(TOOLKITS[toolkit_arg](workload_arg, Path(directory_arg), int(seed_arg))))
