"""Tiny random encoder-decoders of transformers with their tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = ["the river by the cat and then the bird sat on the tree"] * 9
LINES = ["the cat sat", "a bird then the tree", "bird", "the river by the river by the cat and the tree", "sat on"]
SIZES = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 40,
}
# fewer layers in the decoder: the cache of transformers has as many layers as the encoder
T5_SIZES = {"d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 3}
KINDS: dict[str, dict[str, Any]] = {
    "bart": {"forced_bos_token_id": 0},
    "bart-scaled": {"scale_embedding": True, "activation_function": "relu", "tie_word_embeddings": False},
    "t5": {"decoder_start_token_id": 0},
    "t5-gated": {"decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "t5-tied": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    "marian": {"activation_function": "swish", "scale_embedding": True},
    "marian-unshared": {"share_encoder_decoder_embeddings": False},
    "pegasus": {"activation_function": "relu", "scale_embedding": True},
}


def unigram(folder: Path, specials: list[str]) -> int:
    """A tokenizer like that of T5: SentencePiece's unigram model, with </s> after a text. Returns the vocabulary size."""
    pieces = ["▁the", "▁", "▁river", "▁cat", "▁bird", "▁tree", "▁by", "at", "th", "en", *"abcdehinorstvy"]
    scores = [(name, 0.0) for name in specials] + [(piece, -2.0 - 0.1 * rank) for rank, piece in enumerate(pieces)]
    full = Tokenizer(models.Unigram(scores, unk_id=specials.index("<unk>"), byte_fallback=False))
    full.normalizer, full.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    full.decoder = decoders.Metaspace()
    full.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", specials.index("</s>"))])
    full.save(str(folder / "tokenizer.json"))
    return full.get_vocab_size()


def byte_pairs(folder: Path) -> int:
    """A tokenizer like that of BART, with <s> and </s> around a text. Returns the vocabulary size."""
    full = Tokenizer(models.BPE(unk_token="<unk>"))
    full.pre_tokenizer, full.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    full.train_from_iterator(TEXT, trainer)
    full.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    full.save(str(folder / "tokenizer.json"))
    return full.get_vocab_size()


def build(kind: str, folder: Path) -> Any:
    """A model of transformers with its tokenizer in `folder`."""
    import transformers

    options, model_type = KINDS[kind], kind.partition("-")[0]
    if model_type == "bart":
        config = transformers.BartConfig(vocab_size=byte_pairs(folder), **SIZES, **options)
        return transformers.BartForConditionalGeneration(config)
    if model_type == "t5":  # with rows of the embedding that no token has, as in the original
        size = unigram(folder, ["<pad>", "</s>", "<unk>"]) + 5
        return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=size, **T5_SIZES, **options))
    tokens = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 0}
    size = unigram(folder, ["</s>", "<unk>", "<pad>"])
    if model_type == "marian":
        return transformers.MarianMTModel(transformers.MarianConfig(vocab_size=size, **SIZES, **tokens, **options))
    config = transformers.PegasusConfig(vocab_size=size, **SIZES, **tokens, **options)
    return transformers.PegasusForConditionalGeneration(config)


def fill(model: Any) -> None:
    """Random weights such that every part has an effect on logits, and each token on the next one of a greedy search."""
    torch.manual_seed(6)
    model_type = model.config.model_type
    is_post_norm = model_type in ("bart", "marian")
    last_norms = (f"decoder.layers.{SIZES['decoder_layers'] - 1}.final_layer_norm.weight",) if is_post_norm else ()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name and model_type != "bart":
                continue  # sines and cosines
            scale = 0.1 if weight.dim() == 1 else 0.17 if is_post_norm and "decoder." in name else 0.3
            if model_type != "t5" and ("shared" in name or "embed_tokens" in name):
                scale = 1.5
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            # output weights are the embeddings: with the opposite sign, a token is not repeated
            center = -center if name.endswith((*last_norms, "model.decoder.layer_norm.weight")) else center
            weight.copy_(torch.randn_like(weight) * scale + center)
        if "final_logits_bias" in dict(model.named_buffers()):
            model.final_logits_bias.normal_(std=0.3)


class Pair(NamedTuple):
    """A model of transformers, its directory, and the directory of the imported run."""

    kind: str
    model: Any
    folder: Path
    run_dir: Path


def make_folder(kind: str, folder: Path) -> Any:
    """Save a random model and its tokenizer, and return the model."""
    folder.mkdir()
    model = build(kind, folder).eval()
    fill(model)
    if kind == "t5-gated":  # an output layer of its own
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
    model.generation_config.forced_eos_token_id = None  # would end outputs at the length limit
    if kind == "bart":
        model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(folder)
    return model
