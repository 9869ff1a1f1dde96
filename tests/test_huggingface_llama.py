"""Import of Llama, Mistral and Qwen2: the logits and greedy outputs of transformers, and rejected configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import expect_error

import weft
from weft.cli.main import main
from weft.errors import ModelError
from weft.interop.hf_checkpoint import ZERO_PROB_LOGIT
from weft.interop.huggingface import import_model
from weft.models.config import LanguageModelConfig
from weft.nn.positions import RotaryEmbedding
from weft.training.weight_compatibility import Part, stack_options

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
NEAR = 1e-4
TEXT = "the river by the cat and then the bird by the naïve 東京 river"
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 90,
}
LLAMA_2 = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
QWEN = {"bos_token": None, "eos_token": "<|endoftext|>", "unk_token": None}
LLAMA_3 = {"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>"}
# model type, options, special tokens of the tokenizer
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, LLAMA_2),
    "grouped": ("llama", {"num_key_value_heads": 2, "head_dim": 8, "rope_theta": 5e5, "tie_word_embeddings": True}, LLAMA_3),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "rms_norm_eps": 0.1}, LLAMA_2),
    "mistral": ("mistral", {"sliding_window": 6, "num_key_value_heads": 2}, LLAMA_2),
    "qwen2": ("qwen2", {"num_key_value_heads": 2, "rope_theta": 1e6, "bos_token_id": 1, "eos_token_id": 1}, QWEN),
}
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}


def write_tokenizer(folder: Path, names: dict[str, Any]) -> int:
    """A small BPE: with SentencePiece's spaces and byte fallback if it has an unknown token, else byte-level."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    contents = [name["content"] if isinstance(name, dict) else name for name in names.values()]
    specials = ["<|pad|>", *reversed([name for name in contents if name is not None])]  # other IDs than in weft
    options: dict[str, Any] = {"vocab_size": 300, "show_progress": False}
    if "<unk>" in specials:
        full = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        full.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        full.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        specials += [f"<0x{byte:02X}>" for byte in range(256)]
        options |= {"vocab_size": 320}
    else:
        full = Tokenizer(models.BPE())
        full.pre_tokenizer, full.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        options |= {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(special_tokens=[AddedToken(name, special=True) for name in specials], **options)
    full.train_from_iterator(["the river by the cat and then the bird"] * 9, trainer)
    if (bos := contents[list(names).index("bos_token")]) is not None:
        template = [(bos, full.token_to_id(bos))]
        full.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=template)
    full.save(str(folder / "tokenizer.json"))
    # bytes are ordinary tokens
    parts = json.loads((folder / "tokenizer.json").read_text())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if not token["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return full.get_vocab_size()


def make_folder(folder: Path, name: str, **changes: Any) -> Any:
    """A random model whose weights are large enough that every part affects the output."""
    folder.mkdir(parents=True)
    model_type, options, names = MODELS[name]
    torch.manual_seed(5)
    config = getattr(transformers, f"{CLASSES[model_type]}Config")(
        vocab_size=write_tokenizer(folder, names) + 3,  # padded, as many models are
        **{**SIZES, **options, **changes},
    )
    model = getattr(transformers, f"{CLASSES[model_type]}ForCausalLM")(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if weight.dim() == 1 else 0.0))
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request, tmp_path_factory):
    """The name of a model, the model, its directory and the imported run."""
    directory = tmp_path_factory.mktemp(request.param)
    model = make_folder(directory / "theirs", request.param)
    imported = import_model(directory / "theirs", directory / "run")
    return request.param, model, directory / "theirs", weft.load(imported.run_dir.path, device="cpu"), imported.notes


def their_rows(folder: Path, run: Any) -> list[int]:
    """Their ID of each token of ours from ID 3, and of </s>, <s>; -1 for a token that they do not have."""
    from tokenizers import Tokenizer

    full, names = (
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        json.loads((folder / "tokenizer_config.json").read_text()),
    )
    contents = {role: name["content"] if isinstance(name, dict) else name for role, name in names.items()}
    eos = contents["eos_token"]
    specials = [contents.get("unk_token"), contents["bos_token"] or eos, eos]
    tokens = [*specials, *(run.vocabulary.id_to_token(token_id) for token_id in range(3, run.vocabulary.vocab_size))]
    return [-1 if token is None else full.token_to_id(token) for token in tokens]


def test_tokens_and_logits_are_those_of_transformers(pair):
    name, model, folder, run, notes = pair
    from tokenizers import Tokenizer

    rows = their_rows(folder, run)
    ids = [1, *run.vocabulary.encode(TEXT).tolist()]
    their_ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    assert [rows[token_id] for token_id in ids] == [rows[1], *their_ids] and len(ids) > 15
    assert run.vocabulary.decode(ids[1:]).strip() == TEXT
    with torch.no_grad():
        expected = model(torch.tensor([[rows[1], *their_ids]])).logits
        actual = run.model.head.logits(run.model(torch.tensor([ids]))[0])
    new = [token_id for token_id in (0, 1) if rows[token_id] in (-1, rows[2])]  # never predicted
    assert new == {"grouped": [0], "qwen2": [0, 1]}.get(name, [])
    for token_id in new:
        assert run.model.head.bias[token_id] == ZERO_PROB_LOGIT
    known = [token_id for token_id in range(len(rows)) if token_id not in new]
    torch.testing.assert_close(actual[..., known], expected[..., [rows[token_id] for token_id in known]], atol=NEAR, rtol=NEAR)
    copies = {"grouped": "2", "biases": "1", "mistral": "2", "qwen2": "2"}.get(name)
    message = "grouped-query attention: the {} key-value heads are copied for 4 heads; outputs are equal, the model is larger, "
    assert notes == ([] if copies is None else [message.format(copies) + "and training changes each copy"])


def test_greedy_outputs_are_those_of_transformers(pair):
    _, model, folder, run, _ = pair
    rows = their_rows(folder, run)
    prompt = [rows[token_id] for token_id in (1, *run.vocabulary.encode("the river").tolist())]
    excluded = sorted({*range(model.config.vocab_size)} - set(rows[3:]))  # weft generates no <unk> and <s>; not </s> here
    row = torch.tensor([prompt])
    output = model.generate(
        row, attention_mask=torch.ones_like(row), max_new_tokens=20, do_sample=False, suppress_tokens=excluded, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    actual = run.generate("the river", max_new_tokens=20, min_new_tokens=20, temperature=0.0)
    assert [rows[token_id] for token_id in actual.token_ids] == output[0, len(prompt) :].tolist()


def test_options_of_the_run(pair):
    name, _, _, run, _ = pair
    model = run.config.model
    assert run.config.data.context_length == (6 if name == "mistral" else 90)
    assert model.rope_theta == {"grouped": 5e5, "qwen2": 1e6}.get(name)
    assert model.bias is (name in ("biases", "qwen2")) and model.tie_embeddings is (name == "grouped")
    assert model.head_dim == (8 if name == "grouped" else 6)


def test_rope_theta_is_the_base_of_the_frequencies():
    exact = [theta ** (-i / 4) for theta in (1e4, 5e5) for i in range(4)]
    actual = torch.cat([RotaryEmbedding(8).frequencies, RotaryEmbedding(8, theta=5e5).frequencies])
    torch.testing.assert_close(actual, torch.tensor(exact))


def test_rope_theta_is_an_option_that_weights_depend_on():
    def part(**options: Any) -> Part:
        config = LanguageModelConfig(layer_type="attention", position_encoding="rotary", **options).with_defaults()
        return Part(stack_options(config, config.num_layers))

    assert part().differences(part(rope_theta=10000.0)) == []
    assert part().differences(part(rope_theta=5e5)) == ["rope_theta: 500000.0 there, none here"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "theirs"
    make_folder(folder, "llama")
    return folder


def edited(source: Path, folder: Path, values: dict[str, Any], file: str = "config.json") -> Path:
    """A copy of a directory with other values in a file; None removes a value."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    new = {**json.loads((folder / file).read_text()), **values}
    (folder / file).write_text(json.dumps(new))
    return folder


SCALING = "rotary positions of type 'llama3' are not supported, only 'default'; use a model without rope scaling"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, f"rope_parameters: {SCALING}"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, f"rope_scaling: {SCALING}"),
        ({"rope_scaling": "linear"}, "rope_scaling: expected an object, got 'linear'"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta: expected a number, got 'big'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported, only 1.0"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported, only 'silu'"),
        ({"use_sliding_window": True}, "use_sliding_window = True is not supported, only False"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types = ['full_attention', 'sliding_attention'] is not supported, only 'full_attention' in all layers",
        ),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 25, "head_dim": None}, "hidden_size 25 is not divisible by num_attention_heads 4"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "the model is quantized (quantization_config); save the model in float32 or bfloat16",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected an integer greater than 0, got 0"),
        (
            {"head_dim": 7},
            "not a valid model: model.position_encoding: 'rotary' requires an even head size, got 7; change num_heads or set head_dim",
        ),
    ],
)
def test_what_weft_cannot_compute_is_rejected(llama, tmp_path, values, message):
    folder = edited(llama, tmp_path / "theirs", values)
    with pytest.raises(ModelError) as caught:
        import_model(folder, tmp_path / "out")
    assert str(caught.value) == f"{folder / 'config.json'}: {message}"
    assert not (tmp_path / "out" / "resolved.toml").exists()


def test_weights_must_have_the_sizes_of_the_configuration(llama, tmp_path, capsys):
    folder = edited(llama, tmp_path / "theirs", {"num_key_value_heads": 2})
    arguments = ["import", str(folder), "--output-dir", str(tmp_path / "out")]
    message = f"{folder}: 'layers.0.self_attn.k_proj.weight' is 24x24, expected 12x24 from config.json"
    assert expect_error(capsys, *arguments) == (4, message)
    folder = edited(llama, tmp_path / "biased", {"attention_bias": True})
    with pytest.raises(ModelError, match=r"tensor 'layers.0.self_attn.q_proj.bias' \(24\) is missing"):
        import_model(folder, tmp_path / "out")


def test_the_end_token_must_be_known(llama, tmp_path):
    names = {"eos_token": None, "bos_token": None}
    folder = edited(
        edited(llama, tmp_path / "first", names, "tokenizer_config.json"), tmp_path / "theirs", {"eos_token_id": None}
    )
    with pytest.raises(ModelError) as caught:
        import_model(folder, tmp_path / "out")
    fix = "set eos_token in tokenizer_config.json"
    assert str(caught.value) == f"{folder}: neither the tokenizer nor config.json names its end token; {fix}"


def test_instruction_tuning_starts_from_an_imported_llama(tmp_path):
    make_folder(tmp_path / "theirs", "grouped")
    import_model(tmp_path / "theirs", tmp_path / "base")
    rows = [{"instruction": f"say {word}", "output": word} for word in ("cat", "bird", "river", "the") * 6]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(
        'task = "instruction-tuning"\nrecommend = false\n[data]\ntrain = "data.jsonl"\nvalid = 0.2\nmax_length = 80\n'
        '[train]\nmax_steps = 2\nbatch_tokens = 200\ndevice = "cpu"\n'
    )
    arguments = ["train", str(tmp_path / "run.toml"), "--init-from", str(tmp_path / "base"), "--quiet"]
    assert main([*arguments, "--output-dir", str(tmp_path / "tuned")]) == 0
    base, tuned = (weft.load(tmp_path / name, device="cpu") for name in ("base", "tuned"))
    assert tuned.vocabulary.hash == base.vocabulary.hash
    model = tuned.config.model
    assert (model.norm, model.activation, model.rope_theta, model.bias) == ("rmsnorm", "swiglu", 5e5, False)
    change = (tuned.model.embedding.weight - base.model.embedding.weight).abs().max()
    assert 0 < change < 0.1  # trained, from the imported weights
