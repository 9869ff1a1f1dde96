"""Exports to transformers, sentence-transformers and llama.cpp: tokens, probabilities and outputs equal those of the run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_runs import LLAMA, SMALL, TRAIN, encoder_run, lm_run, randomized, trained
from seq2seq_runs import make_pairs
from small_runs import train_here

from weft.errors import ModelError, UsageError
from weft.interop import gguf_export, hf_lm_export
from weft.interop.export_record import ExportOptions
from weft.interop.formats import export_run
from weft.interop.gguf_tokenizer import LLAMA_3, split_name
from weft.interop.hf_check import refuse_difference
from weft.interop.huggingface import import_model
from weft.models.encoder import EncoderInput
from weft.runs.load import load

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
NEAR = 1e-4
LINES = ["the old cat sees", "a dog by the river .", "naïve 東京 1234"]
APERTUS = {"arch": "gpt", "bias": False, "head_bias": False, "logit_softcap": 0.0}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**LLAMA, "norm_eps": 1e-3, "rope_theta": 500.0}),
    "llama-tied": ("LlamaForCausalLM", {**LLAMA, "tie_embeddings": True, "bias": False, "head_dim": 6}),
    "qwen3": ("Qwen3ForCausalLM", {**APERTUS, "activation": "swiglu"}),
    "apertus": ("ApertusForCausalLM", APERTUS),
    "apertus-gelu": ("ApertusForCausalLM", {**APERTUS, "activation": "gelu-tanh"}),
    "arcee": ("ArceeForCausalLM", {**APERTUS, "bias": True, "qk_norm": False, "norm_eps": 1e-3}),
    "gpt2-without-bias": ("GPT2LMHeadModel", {"arch": "transformer", "bias": False}),
}


def difference(directory: Path) -> float:
    return float(json.loads((directory / "export.json").read_text())["check"]["max_difference"])


def export(run: Any, name: str, directory: Path, **options: Any) -> list[str]:
    return export_run(run, name, directory, ExportOptions(**options))


# ---- language models


@pytest.mark.parametrize("name", FORMS)
def test_language_models_are_those_of_transformers(tmp_path, name):
    """Without training after the import, and with text that starts as in weft."""
    class_name, options = FORMS[name]
    run = lm_run(tmp_path, options, read_as="lines" if "tied" in name else "windows")
    export(run, "hf", tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == class_name
    assert 0 < difference(tmp_path / "out") < NEAR
    for line in LINES:
        batch = tokenizer(line, return_tensors="pt")
        ids = run.spec.decode.prompt_ids(run, line)
        assert batch["input_ids"].tolist() == [ids]
        with torch.no_grad():
            theirs = model(**batch).logits.log_softmax(-1)
            ours = run.model.head(run.model(torch.tensor([ids]))[0])
            generated = model.generate(**batch, max_new_tokens=6, do_sample=False)[0, len(ids) :].tolist()
        assert (theirs - ours).abs().max() < NEAR and ours.std() > 0.1
        assert generated == run.generate(line, max_new_tokens=6, temperature=0).token_ids[:6]
    if name.startswith("llama"):
        again: Any = load(import_model(tmp_path / "out", tmp_path / "again").run_dir.path, device="cpu")
        assert not again.config.model.head_bias
        export(again, "hf", tmp_path / "twice")
        assert (tmp_path / "twice" / "model.safetensors").read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()


def test_prompts_of_a_batch_are_padded_on_the_left(tmp_path):
    run = lm_run(tmp_path, LLAMA)
    export(run, "hf", tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = tokenizer(LINES, padding=True, return_tensors="pt")
    rows = model.generate(**batch, max_new_tokens=5, do_sample=False)[:, batch["input_ids"].size(1) :].tolist()
    assert rows == [run.generate(line, max_new_tokens=5, temperature=0).token_ids for line in LINES]


def test_adapters_are_merged(tmp_path):
    run = lm_run(tmp_path, LLAMA)
    rows = [{"instruction": f"say {name}", "response": name} for name in ("cat", "dog", "tree") * 6]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tuned").mkdir()
    values = {
        "task": "instruction-tuning",
        "data": {"train": str(tmp_path / "train.jsonl"), "max_length": 64},
        "tokenizer": {"file": str(run.directory.tokenizer)},
        "model": {**SMALL, **LLAMA, "lora_rank": 2},
        "train": {"init_from": str(run.path)},
    }
    tuned = trained(tmp_path / "tuned", values)
    assert any(name.endswith("lora_b") for name, _ in tuned.model.named_parameters())
    export(tuned, "hf", tmp_path / "out")
    assert 0 < difference(tmp_path / "out") < NEAR


# ---- encoder-decoders

POST = {"norm_position": "post", "share_embeddings": True, "tie_embeddings": True}
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "Pegasus": {"share_embeddings": True},
    "Marian": POST,
    "Bart": {**POST, "position_encoding": "learned", "embedding_norm": True},
    "T5": {
        "position_encoding": "relative-bias",
        "norm": "rmsnorm",
        "bias": False,
        "head_bias": False,
        "share_embeddings": True,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_beam_search_gives_the_same_outputs(tmp_path, name):
    values = {
        "task": "seq2seq",
        "recommend": False,
        "data": {"train": str(make_pairs(tmp_path / "pairs.tsv")), "max_length": 40},
        "tokenizer": {"type": "char"},
        "model": {"arch": "transformer", **SMALL, **SEQ2SEQ[name]},
        "train": {**TRAIN, "max_steps": 100, "lr": 0.01, "batch_tokens": 600},
    }
    train_here(values, tmp_path / "run")
    run: Any = load(tmp_path / "run", device="cpu")
    export(run, "hf", tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(model).__name__.startswith(name)
    rng = random.Random(5)
    lines = ["".join(rng.choices("abcdef", k=rng.randint(1, 7))) for _ in range(50)]
    for line, ours in zip(lines, run.predict(lines, beam_size=5, patience=0, max_new_tokens=30), strict=True):
        batch = tokenizer(line, return_tensors="pt")
        theirs = model.generate(**batch, num_beams=5, early_stopping="never", max_new_tokens=30)[0, 1:].tolist()
        assert theirs[: len(ours.token_ids)] == list(ours.token_ids) and set(theirs[len(ours.token_ids) :]) <= {2}


# ---- encoders


def encode(directory: Path) -> tuple[Any, Any]:
    class_name = json.loads((directory / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, class_name).from_pretrained(directory).eval()
    return model, transformers.AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("data", [{}, {"multilabel": True}, {"text_column": ["a", "b"]}], ids=["one", "multilabel", "pairs"])
def test_classifiers(tmp_path, data):
    run = encoder_run(tmp_path, "classification", {"pooling": "first"}, **data)
    run.model.head.temperature.fill_(1.7)
    export(run, "hf", tmp_path / "out")
    model, tokenizer = encode(tmp_path / "out")
    assert type(model).__name__ == "BertForSequenceClassification"
    assert difference(tmp_path / "out") < 1e-5
    texts: list[Any] = (
        [("the cat", "some old dog"), ("a", "the")] if "text_column" in data else ["the cat", "red saw there", ""]
    )
    for text in texts:
        batch = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits[0]
        probs = logits.sigmoid() if "multilabel" in data else logits.softmax(-1)
        prediction = run.predict(text)
        for index, label in model.config.id2label.items():
            assert probs[index].item() == pytest.approx(prediction.probabilities[label], abs=1e-5)


def test_taggers(tmp_path):
    run = encoder_run(tmp_path, "tagging", {})
    export(run, "hf", tmp_path / "out")
    model, tokenizer = encode(tmp_path / "out")
    assert type(model).__name__ == "BertForTokenClassification" and difference(tmp_path / "out") < NEAR
    words = ["mr", "bcdfg", "the", "new", "zebra"]
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        best = model(**batch).logits[0].argmax(-1).tolist()
    tags = [model.config.id2label[best[batch.word_ids().index(index)]] for index in range(len(words))]
    assert tags == list(run.predict([words])[0].tags)


def test_question_answering(tmp_path):
    rows = [{"question": "who", "passage": f"the cat {name} sees", "answer": name} for name in ("ida", "otto", "eve") * 8]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    values = {
        "task": "qa",
        "data": {"train": str(tmp_path / "train.jsonl"), "max_length": 32, "doc_stride": 8},
        "model": {"arch": "bert", **SMALL},
    }
    run = trained(tmp_path, {**values, "tokenizer": {"type": "wordpiece", "vocab_size": 60}})
    note = "transformers does not know which positions can be answers: position 0 means no answer"
    assert export(run, "hf", tmp_path / "out") == [note]
    model, tokenizer = encode(tmp_path / "out")
    assert type(model).__name__ == "BertForQuestionAnswering" and difference(tmp_path / "out") < NEAR
    batch = tokenizer("who", "the cat ida sees", return_tensors="pt")
    with torch.no_grad():
        theirs = model(**batch)
        inputs = batch["input_ids"], batch["attention_mask"].bool(), batch["token_type_ids"]
        ours = run.model(EncoderInput(*inputs))[0]
    allowed = ours[:, 0] > -1e30
    assert allowed.sum() > 3
    for index, logits in enumerate((theirs.start_logits[0], theirs.end_logits[0])):
        assert (logits - ours[:, index])[allowed].abs().max() < NEAR


# ---- sentence-transformers


@pytest.mark.parametrize("task", ["masked-lm", "classification"])
def test_sentence_transformers_give_the_vectors_of_embed(tmp_path, task):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    run = encoder_run(tmp_path, task, {"bias": False} if task == "classification" else {})
    assert export(run, "sentence-transformers", tmp_path / "out") == []
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = [*LINES, "", "the old cat sees " * 20]  # the last one is truncated
    assert run.embed_with_info(texts).truncated.tolist() == [False] * 4 + [True]
    assert np.abs(model.encode(texts) - run.embed(texts)).max() < 1e-6
    assert difference(tmp_path / "out") < 1e-6


# ---- GGUF


def test_gguf_files_have_the_probabilities_of_the_run(tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed")
    for name, options in (("llama", FORMS["llama"][1]), ("qwen3", FORMS["qwen3"][1]), ("tied", FORMS["llama-tied"][1])):
        (tmp_path / name).mkdir()
        run = lm_run(tmp_path / name, options, tokenizer={"type": "byte"}, read_as="lines")
        assert export(run, "gguf", tmp_path / name / "out") == []
        assert 0 < difference(tmp_path / name / "out") < NEAR
        if name == "llama":
            rounded = {}
            for quantization in ("f16", "q8_0"):
                export(run, "gguf", tmp_path / quantization, quantization=quantization)
                rounded[quantization] = difference(tmp_path / quantization)
            assert NEAR < rounded["f16"] < rounded["q8_0"] < 0.5


def test_llama_cpp_computes_the_same(tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    run = lm_run(tmp_path, FORMS["llama"][1], tokenizer={"type": "byte"}, read_as="lines")
    with torch.no_grad():
        run.model.head.weight[131:] = 0.0  # llama.cpp does not give the probabilities of an incomplete character
    export(run, "gguf", tmp_path / "out")
    assert gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    params = xllamacpp.CommonParams()
    params.model.path = str(tmp_path / "out" / "model.gguf")
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.verbosity = 256, 1, 0, 0
    params.warmup, params.fit_params, params.cpuparams.n_threads = False, False, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    for line in LINES:
        answer = server.handle_completions({"prompt": line, "max_tokens": 1, "temperature": 0, "logprobs": 5})
        ids = run.spec.decode.prompt_ids(run, line)
        assert answer["usage"]["prompt_tokens"] == len(ids)
        with torch.no_grad():
            ours = run.model.head(run.model(torch.tensor([ids]))[0])[0, -1]
        for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            assert entry["logprob"] == pytest.approx(float(ours[entry["id"]]), abs=3e-3)


def test_tokenizers_that_llama_cpp_splits_in_another_way_are_refused(tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed")
    run = lm_run(tmp_path, LLAMA)
    start, fix = "llama.cpp would split a text into other tokens; use tokenizer.type = 'byte', or ", "tokenizer.file with a "
    rest = "byte-level BPE that splits like GPT-2, Llama 3 or Qwen2"
    with pytest.raises(UsageError) as caught:
        export(run, "gguf", tmp_path / "out")
    assert str(caught.value) == f"export: tokenizer.type = 'bpe': {start}{fix}{rest}"
    with pytest.raises(UsageError, match=r"export: tokenizer\.json: llama\.cpp would split a text into other tokens"):
        gguf_export.export(
            run, tmp_path / "out", ExportOptions()
        )  # a file that was not there when the configuration was judged
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "gpt-2"),
        ({"merges": []}, "gpt-2"),
        ({"normalizer": {"type": "Lowercase"}}, None),
        ({"type": "Unigram"}, None),
        ({"ignore_merges": True}, None),
        ({"split": LLAMA_3, "ignore_merges": True}, "llama-bpe"),
        ({"split": LLAMA_3}, None),
        ({"split": LLAMA_3.replace("{1,3}", "")}, "qwen2"),
        ({"split": r"\p{N}"}, None),
        ({"add_prefix_space": True}, None),
    ],
)
def test_splits_of_llama_cpp(changes, expected):
    byte_level = {"type": "ByteLevel", "add_prefix_space": changes.get("add_prefix_space", False), "use_regex": True}
    pre_tokenizer: dict[str, Any] = byte_level
    if "split" in changes:
        split = {"type": "Split", "pattern": {"Regex": changes["split"]}, "behavior": "Isolated"}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, {**byte_level, "use_regex": False}]}
    model = {"type": "BPE", "merges": [["a", "b"]], "ignore_merges": False, "byte_fallback": False}
    model |= {key: value for key, value in changes.items() if key in ("type", "merges", "ignore_merges")}
    assert split_name({"model": model, "pre_tokenizer": pre_tokenizer, "normalizer": changes.get("normalizer")}) == expected


# ---- the comparison


def test_an_export_that_differs_is_refused(tmp_path, monkeypatch):
    run = lm_run(tmp_path, LLAMA)
    monkeypatch.setattr(hf_lm_export, "rope_theta", lambda table: 9.0)
    randomized(run, 0.5)
    message = r"^export: the exported model differs from the run by .*, more than 0\.0001; report it as a bug of weft, with the run file$"
    with pytest.raises(ModelError, match=message):
        export(run, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelError):
        refuse_difference(float("nan"))
