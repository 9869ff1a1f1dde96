"""How each kind of model is exported to ONNX: its graphs, what is written beside them, and the example that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.interop.onnx_decoders import Layout, encoder_decoder_graphs, language_model_graph
from weft.interop.onnx_graphs import Graph, encoder_graph, recognizer_graph, tagger_graph
from weft.models.config import LanguageModelConfig
from weft.models.encoder_config import ClassifierConfig, MaskedLMConfig, QAConfig, TaggerConfig
from weft.models.reward_config import RewardConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.models.speech_config import SpeechConfig
from weft.runs.run import AnyRun
from weft.text.noise_tokenizer import NoiseTokenizer
from weft.text.tokenizers import Tokenizer

PROMPT = "{prompt}"  # the place of the prompt in a template
MAX_CHECKED = 512  # the longest context that is checked


class Exported(NamedTuple):
    """The content of an exported directory."""

    example: str  # the name of the example programs
    graphs: Sequence[Graph]
    tokenizers: Mapping[str, Tokenizer]  # by file name
    settings: Mapping[str, Any]  # for model.json
    max_length: int | None  # the longest input, in tokens
    longer: Sequence[int] = ()  # other lengths to check
    labels: Mapping[str, Any] | None = None  # labels.json
    states: Layout | None = None  # what a step carries
    arguments: str = "TEXT"  # of the example


def _classifier(run: AnyRun) -> Exported:
    tokenizer, labels, max_length = run.vocabulary.tokenizer, run.vocabulary.labels.names, run.config.data.max_length
    graph = encoder_graph(
        run.model,
        lambda model, text: model.head.log_probs(model(text)),
        result=("log_probs", ("batch", len(labels))),
        vocab_size=tokenizer.vocab_size,
        segments=len(run.config.data.columns()) > 1,
    )
    content = {"labels": labels, "multilabel": bool(run.config.data.multilabel)}
    return Exported("classify", [graph], {"tokenizer.json": tokenizer}, {}, max_length, labels=content)


def _tagger(run: AnyRun) -> Exported:
    tokenizer, labels, characters = run.vocabulary
    tokenizers = {"tokenizer.json": tokenizer} | ({} if characters is None else {"tokenizer.char.json": characters})
    graph = tagger_graph(
        run.model,
        vocab_size=tokenizer.vocab_size,
        char_vocab_size=None if characters is None else characters.vocab_size,
        num_tags=labels.size,
    )
    scores = run.model.head.transition_scores()
    names = ("transitions", "start", "end")
    content = {"labels": labels.names, **{name: part.tolist() for name, part in zip(names, scores, strict=True)}}
    limit = run.model.max_positions
    # a sample has two more tokens, <s> and </s>
    return Exported("tag", [graph], tokenizers, {"max_length": limit}, None if limit is None else limit - 2, labels=content)


def _masked_lm(run: AnyRun) -> Exported:
    model = run.model
    parts = {"vocab_size": model.mask_id + 1, "segments": bool(run.config.model.segment_embeddings)}
    with_head = ("log_probs", ("batch", "length", model.mask_id + 1))
    hidden = ("hidden_states", ("batch", "length", run.config.model.hidden_size))
    graphs = [
        encoder_graph(model, lambda model, text: model.log_probs(model(text)), result=with_head, **parts),
        encoder_graph(model.encoder, lambda encoder, text: encoder(text)[0], name="encoder", result=hidden, **parts),
    ]
    settings = {"mask_id": model.mask_id, "mask_pattern": run.predictor.mask_pattern.pattern}
    max_length = run.config.data.context_length if model.max_positions is None else model.max_positions
    return Exported("fill", graphs, {"tokenizer.json": run.vocabulary}, settings, max_length)


def _qa(run: AnyRun) -> Exported:
    data = run.config.data
    graph = encoder_graph(
        run.model,
        lambda model, text: model(text),
        result=("logits", ("batch", "length", 2)),
        vocab_size=run.vocabulary.vocab_size,
        segments=True,
    )
    settings = {
        "threshold": float(run.model.head.threshold),
        "stride": data.doc_stride,
        "max_answer_length": data.max_answer_length,
    }
    return Exported(
        "answer", [graph], {"tokenizer.json": run.vocabulary}, settings, data.max_length, arguments="QUESTION PASSAGE"
    )


def _reward_model(run: AnyRun) -> Exported:
    graph = encoder_graph(
        run.model,
        lambda model, text: model(text),
        result=("rewards", ("batch",)),
        vocab_size=run.vocabulary.vocab_size,
        segments=run.config.data.prompt_column is not None,
    )
    return Exported("reward", [graph], {"tokenizer.json": run.vocabulary}, {}, run.config.data.max_length)


def _language_model(run: AnyRun) -> Exported:
    model, tokenizer = run.model, run.vocabulary
    decoding: Any = run.spec.decode
    graph, states = language_model_graph(model, vocab_size=tokenizer.vocab_size)
    data = run.config.data
    template = data.template.removesuffix("{response}") if "template" in type(data).model_fields else PROMPT
    empty = decoding.prompt_ids(run, "")
    settings = {
        "template": template,
        "start_ids": empty[: len(empty) - len(tokenizer.encode(template.replace(PROMPT, "")))],
        "eos_id": decoding.eos_id(run),
        "suppressed_ids": list(decoding.suppressed_tokens(run)),
        "context_length": model.context_length,
    }
    longer = [] if model.context_length > MAX_CHECKED else [model.context_length + 7]  # the oldest tokens are not visible
    return Exported("generate", [graph], {"tokenizer.json": tokenizer}, settings, model.max_positions, longer, states=states)


def _encoder_decoder(run: AnyRun) -> Exported:
    model, pair = run.model, run.predictor.tokenizer
    decoding: Any = run.spec.decode
    source, target = pair.source, pair.target
    graphs, states = encoder_decoder_graphs(model, source_vocab_size=source.vocab_size, vocab_size=target.vocab_size)
    settings = {
        "source_start_ids": list(source.start_tokens.source),
        "start_ids": list(target.start_tokens.target),
        "eos_id": target.eos_id,
        "suppressed_ids": list(decoding.suppressed_tokens(run)),
        "max_positions": model.max_positions,
        "noise": _noise(source) if isinstance(source, NoiseTokenizer) else None,
    }
    names = ("tokenizer.json",) if pair.is_shared else ("tokenizer.source.json", "tokenizer.target.json")
    tokenizers = dict(zip(names, pair, strict=False))
    return Exported("translate", graphs, tokenizers, settings, run.config.data.max_length, states=states)


def _noise(tokenizer: NoiseTokenizer) -> Mapping[str, Any]:
    """Masks in a text: their pattern, the ID of the first one, and how many there are if they are numbered, otherwise 0."""
    return {"pattern": tokenizer.pattern.pattern, "id": tokenizer.first_noise_id, "num_sentinels": tokenizer.num_sentinels}


def _recognizer(run: AnyRun) -> Exported:
    tokenizer, log_mel = run.vocabulary, run.model.encoder.front.log_mel
    graph = recognizer_graph(run.model, vocab_size=tokenizer.vocab_size, hop=log_mel.hop)
    settings = {"sample_rate": log_mel.rate, "hop": log_mel.hop, "blank_id": run.model.blank}
    return Exported("recognize", [graph], {"tokenizer.json": tokenizer}, settings, None, [150], arguments="FILE.wav")


EXPORTERS: Mapping[type, Callable[[AnyRun], Exported]] = {
    ClassifierConfig: _classifier,
    TaggerConfig: _tagger,
    MaskedLMConfig: _masked_lm,
    QAConfig: _qa,
    RewardConfig: _reward_model,
    LanguageModelConfig: _language_model,
    SpeechConfig: _recognizer,
    Seq2SeqConfig: _encoder_decoder,
}
