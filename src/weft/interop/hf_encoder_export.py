"""Export text encoders as BERT: masked language models, classifiers, taggers and question answering.

`BertForSequenceClassification` has a layer before the labels that weft does not have: tanh(W h + b). With W = s I, b = 0 and a
small s, tanh(s h) / s equals h up to the rounding of float32, so the labels' weights are divided by s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.interop import hf_names
from weft.interop.hf_architectures import ACTIVATIONS, LAYER_NORM_EPS
from weft.interop.hf_export_parts import Comparison, Exported, to_hf, with_biases
from weft.interop.hf_names import BERT, encoder_mappings, head_mappings
from weft.interop.hf_shapes import pad_heads
from weft.interop.hf_tokenizer import export_encoder_tokenizer
from weft.models.encoder import EncoderInput
from weft.models.encoder_config import ClassifierConfig, MaskedLMConfig, QAConfig, TaggerConfig, TextEncoderConfig
from weft.runs.run import AnyRun
from weft.text.tokenizers import Tokenizer

POOLER_SCALE = (
    2.0**-12
)  # tanh(x) = x (1 - x^2 / 3 ...): the error is below the rounding, and values are in the range of float16
NO_POOLER = "the model has no pooler, AutoModel initializes one randomly: use last_hidden_state"
Outputs = Callable[[Tensor], Tensor]  # of tokens (B, T)


class Encoder(NamedTuple):
    """An encoder by the names of Hugging Face, without a prefix, and what a model with a head adds to it."""

    tensors: dict[str, Tensor]
    ours: dict[str, Tensor]  # all weights of the run
    config: dict[str, Any]
    notes: list[str]


class Head(NamedTuple):
    """What an output layer adds."""

    class_name: str
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    ours: Outputs
    output: str  # of the model of transformers
    notes: tuple[str, ...] = ()


def text_of(tokens: Tensor) -> EncoderInput:
    """Single texts without padding."""
    return EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool))


def encoder_of(run: AnyRun) -> Encoder:
    """The encoder of a run as a BertModel."""
    table: TextEncoderConfig = run.config.model
    mappings = list(encoder_mappings(BERT, table.num_layers))
    biased = with_biases(run.model.state_dict(), mappings)
    ours, num_heads, num_new = pad_heads(biased, table, stack="encoder.stack")
    note = f"{num_new} of {num_heads * table.num_layers} heads are pruned and exported as zeros: same outputs, same size"
    tensors = to_hf(mappings, ours)
    tensors[hf_names.TOKENS] = ours["encoder.embedder.embedding.weight"]
    tensors[hf_names.POSITIONS] = ours["encoder.stack.positions.table.weight"]
    segments = ours.get("encoder.embedder.segments.weight")
    tensors[hf_names.SEGMENTS] = torch.zeros(2, table.hidden_size) if segments is None else segments
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(tensors[hf_names.TOKENS]),
        "hidden_size": table.hidden_size,
        "num_hidden_layers": table.num_layers,
        "num_attention_heads": num_heads,
        "intermediate_size": table.ffn_dim,
        "hidden_act": ACTIVATIONS[table.activation or "gelu"],
        "hidden_dropout_prob": table.dropout,
        "attention_probs_dropout_prob": table.attention_dropout,
        "max_position_embeddings": run.model.max_positions,
        "type_vocab_size": 2,
        "layer_norm_eps": LAYER_NORM_EPS if table.norm_eps is None else table.norm_eps,
        "tie_word_embeddings": False,
    }
    return Encoder(tensors, ours, config, [note] if num_new else [])


# ---- output layers


def _masked_lm(run: AnyRun, encoder: Encoder) -> Head:
    table: MaskedLMConfig = run.config.model
    notes, tied = (NO_POOLER,), {"tie_word_embeddings": table.tie_embeddings}
    if not table.head_transform:
        lost = "the MLM head is not exported: the head of BERT has one more layer (model.head_transform = true)"
        return Head("BertModel", {}, tied, lambda tokens: run.model(text_of(tokens)), "last_hidden_state", (*notes, lost))
    tensors = to_hf(head_mappings(BERT), encoder.ours) | {BERT.bias: encoder.ours["head.bias"]}
    if not table.tie_embeddings:
        decoder_bias = BERT.decoder.replace(".weight", ".bias")
        tensors |= {BERT.decoder: encoder.ours["head.weight"], decoder_bias: encoder.ours["head.bias"].clone()}

    def ours(tokens: Tensor) -> Tensor:
        log_probs: Tensor = run.model.log_probs(run.model(text_of(tokens)))
        return log_probs

    return Head("BertForMaskedLM", tensors, tied, ours, "logits", notes)


def _label_config(labels: tuple[str, ...]) -> dict[str, Any]:
    numbers = {label: index for index, label in enumerate(labels)}
    return {"id2label": {str(index): label for label, index in numbers.items()}, "label2id": numbers}


def _classifier(run: AnyRun, encoder: Encoder) -> Head:
    size, weights = run.config.model.hidden_size, encoder.ours
    temperature = weights["head.temperature"]
    tensors = {
        "bert.pooler.dense.weight": torch.eye(size) * POOLER_SCALE,
        "bert.pooler.dense.bias": torch.zeros(size),
        "classifier.weight": weights["head.scores.weight"] / temperature / POOLER_SCALE,
        "classifier.bias": weights["head.scores.bias"] / temperature,
    }
    kind = "multi_label_classification" if run.model.head.multilabel else "single_label_classification"

    def ours(tokens: Tensor) -> Tensor:
        logits: Tensor = run.model(text_of(tokens)) / temperature
        return logits.log_softmax(-1)

    return Head("BertForSequenceClassification", tensors, {**_label_config(run.labels), "problem_type": kind}, ours, "logits")


def _tagger(run: AnyRun, encoder: Encoder) -> Head:
    tensors = {f"classifier.{part}": encoder.ours[f"head.emissions.{part}"] for part in ("weight", "bias")}

    def ours(tokens: Tensor) -> Tensor:
        text = text_of(tokens)
        y, _ = run.model.encoder.stack(run.model.encoder.embedder.embedding(tokens), None, text.token_mask)
        log_probs: Tensor = run.model.head.log_marginals(y)
        return log_probs

    return Head("BertForTokenClassification", tensors, _label_config(run.labels), ours, "logits")


def _qa(run: AnyRun, encoder: Encoder) -> Head:
    tensors = {f"qa_outputs.{part}": encoder.ours[f"head.ends.{part}"] for part in ("weight", "bias")}

    def ours(tokens: Tensor) -> Tensor:
        logits: Tensor = run.model.head.ends(run.model.encoder(text_of(tokens))[0])
        return logits[..., 0].log_softmax(-1)

    note = "transformers does not know which positions can be answers: position 0 means no answer"
    return Head("BertForQuestionAnswering", tensors, {}, ours, "start_logits", (note,))


HEADS: Mapping[type, Callable[[AnyRun, Encoder], Head]] = {
    MaskedLMConfig: _masked_lm, ClassifierConfig: _classifier, TaggerConfig: _tagger, QAConfig: _qa,
}  # fmt: skip


def tokenizer_of(run: AnyRun) -> Tokenizer:
    """The tokenizer of a run whose model reads one text, or the words of one."""
    tokenizer: Tokenizer = next(iter(run.vocabulary.by_name().values()))
    return tokenizer


def _bert_model(run: AnyRun, encoder: Encoder) -> Head:
    """No output layer."""

    def ours(tokens: Tensor) -> Tensor:
        y, _ = run.model.encoder(text_of(tokens))
        hidden: Tensor = y
        return hidden

    return Head("BertModel", {}, {}, ours, "last_hidden_state")


def bert_model(run: AnyRun) -> Exported:
    """The encoder of a run alone. Its pooler is zero, so that transformers does not invent one."""
    size = run.config.model.hidden_size
    exported = _export(run, _bert_model)
    pooler = {"pooler.dense.weight": torch.zeros(size, size), "pooler.dense.bias": torch.zeros(size)}
    return exported._replace(tensors={**exported.tensors, **pooler})


def export_encoder(run: AnyRun) -> Exported:
    """An encoder with its output layer as BERT."""
    return _export(run, HEADS[type(run.config.model)])


def _export(run: AnyRun, make_head: Callable[[AnyRun, Encoder], Head]) -> Exported:
    encoder = encoder_of(run)
    head = make_head(run, encoder)
    prefix = "" if head.class_name == "BertModel" else BERT.prefix
    tensors = {f"{prefix}{name}": tensor for name, tensor in encoder.tensors.items()} | head.tensors
    config = {**encoder.config, **head.config, "architectures": [head.class_name]}
    tokenizer = tokenizer_of(run)
    files = export_encoder_tokenizer(
        tokenizer, has_mask=len(encoder.tensors[hf_names.TOKENS]) > tokenizer.vocab_size, max_length=run.model.max_positions
    )
    pad_token = files[1]["pad_token"]
    config["pad_token_id"] = next(token["id"] for token in files[0]["added_tokens"] if token["content"] == pad_token)

    def theirs(model: Any, tokens: Tensor) -> Tensor:
        outputs: Tensor = model(input_ids=tokens)[head.output]
        return outputs if head.output == "last_hidden_state" else outputs.log_softmax(-1)

    comparison = Comparison(head.ours, theirs, tokenizer.vocab_size, run.model.max_positions)
    return Exported(config, tensors, files, [*encoder.notes, *head.notes], comparison)
