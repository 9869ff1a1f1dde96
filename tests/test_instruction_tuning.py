"""Instruction tuning: files, templates, batches, packing, adapters, training and chat."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.cli.main import main
from weft.config import parse_config
from weft.data.table_rows import TableOptions
from weft.errors import ConfigError, DataError, UsageError
from weft.models.config import GPT, LanguageModelConfig
from weft.models.lm import language_model
from weft.nn.experts import expert_layers
from weft.nn.lora import adapter_names, add_adapters, merge_adapters
from weft.nn.packing import positions_in_texts
from weft.tasks.instruction_tuning.data import InstructionDataConfig
from weft.tasks.responses.batching import Dialogues, PackedSampler, ResponseBatch, pack
from weft.tasks.responses.data import DialogueFormat, dialogue_edges
from weft.tasks.responses.files import ColumnNames, read_dialogues
from weft.tasks.responses.scoring import token_losses
from weft.tasks.responses.template import Template
from weft.text.reading import FileSummary

TEMPLATE = Template("Q: {prompt}\nA: {response}", "S: {system}\n")
WORDS = ("apple", "river", "stone", "cloud", "tiger", "lamp")


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, names: ColumnNames = ColumnNames()) -> list:  # noqa: B008
    return list(read_dialogues([path], names, TableOptions("utf-8"), TEMPLATE, FileSummary([path], "utf-8")))


def examples() -> list[dict]:
    return [{"instruction": f"Repeat {word}.", "input": "", "output": word} for word in WORDS * 8]


# ---- files


@pytest.mark.parametrize(
    ("row", "prompts", "responses"),
    [
        ({"instruction": "Add", "input": "1 2", "output": "3"}, ("Q: Add\n\n1 2\nA: ",), ("3",)),
        ({"instruction": "Go {response}", "output": "Gone"}, ("Q: Go {response}\nA: ",), ("Gone",)),
        ({"prompt": "Hi", "completion": "Ho"}, ("Q: Hi\nA: ",), ("Ho",)),
        (
            {"messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"},
                          {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "Bye"},
                          {"role": "assistant", "content": "Oh"}]},
            ("S: Be kind\nQ: Hi\nA: ", "Q: Bye\nA: "),
            ("Ho", "Oh"),
        ),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}, ("Q: Hi\nA: ",), ("Ho",)),
    ],
)  # fmt: skip
def test_formats(tmp_path, row, prompts, responses):
    (dialogue,) = read(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert (dialogue.prompts, dialogue.responses, dialogue.line) == (prompts, responses, 1)


def test_tables_and_named_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("ask\ttell\nHi\tHo\n")
    (dialogue,) = read(tmp_path / "a.tsv", ColumnNames(prompt="ask", response="tell"))
    assert dialogue.responses == ("Ho",)


def test_examples_without_a_response_are_skipped_and_counted(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "completion": " "}, {"prompt": "b", "completion": "c"}])
    summary = FileSummary([path], "utf-8")
    assert len(list(read_dialogues([path], ColumnNames(), TableOptions("utf-8"), TEMPLATE, summary))) == 1
    assert (summary.skipped, summary.first_skipped) == (1, f"{path}:1")
    description = DialogueFormat(ColumnNames(), TEMPLATE, TableOptions("utf-8")).summary((path,), summary).describe()
    assert f"examples without a response that were skipped: 1, the first at {path}:1" in description


def chat(*roles: str) -> dict:
    return {"messages": [{"role": role, "content": "x"} for role in roles]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, ":1: no prompt among the columns 'text'; set data.prompt_column"),
        ({"prompt": "a"}, ":1: no response among the columns 'prompt'; set data.response_column"),
        ({"messages": "a"}, ":1: messages must be a list"),
        ({"messages": [{"content": "a"}]}, ":1: message 1: expected an object with 'role' and 'content'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, ":1: message 1: role must be system, user or assistant, got 'tool'"),
        ({"messages": [{"role": "user", "content": 1}]}, ":1: message 1: its content is not a string"),
        (
            chat("system", "user", "user"),
            ":1: message 3: expected a message of the assistant, got one of the user; users and assistants take turns;"
            " join or remove messages",
        ),
        (chat("user"), ":1: the last message is not of the assistant; remove it or add a response"),
    ],
)
def test_invalid_records_name_file_line_and_fix(tmp_path, row, message):
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value) == f"{path}{message}"


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(DataError, match="or JSONL with messages"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.csv").write_text("prompt,response\n")
    with pytest.raises(DataError, match="no examples below the header"):
        read(tmp_path / "a.csv")
    path = write_jsonl(tmp_path / "a.jsonl", [chat("user", "assistant"), {"prompt": "a", "completion": "b"}])
    with pytest.raises(DataError, match=":2: no key 'messages'; use records of one kind in a file"):
        read(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{prompt}"}, "data.template: has no place for the response; add {response} at its end"),
        (
            {"template": "{prompt} {response}."},
            "data.template: {response} must occur once, at the end, where the EOS token follows",
        ),
        ({"template": "Q: {response}"}, "data.template: {prompt} must occur once, got 0 times"),
        ({"system_template": "x"}, "data.system_template: {system} must occur once, got 0 times"),
    ],
)
def test_templates_without_a_place_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        parse_config(InstructionDataConfig, {"train": "a.jsonl", **options}, prefix="data")
    assert str(error.value) == message


# ---- batches


def corpus_of(tmp_path: Path, turns: list[list[tuple[str, str]]]) -> Dialogues:
    """Conversations of characters as token IDs, by the path of a run."""
    from weft.data.corpus import corpus_from_lines
    from weft.text.tokenizers import TokenizerConfig, train_tokenizer

    tokenizer = train_tokenizer(TokenizerConfig(type="byte"), iter(["x"]))
    prompts = corpus_from_lines(tokenizer, [prompt for turn in turns for prompt, _ in turn])
    responses = corpus_from_lines(tokenizer, [response for turn in turns for _, response in turn])
    edges = np.cumsum([0, *map(len, turns)])
    starts = [corpus.line_starts()[edges] for corpus in (prompts, responses)]
    sizes = 1 + np.diff(starts[0]) - np.diff(edges) + np.diff(starts[1])
    return Dialogues(prompts, responses, edges, np.arange(len(turns)), sizes)


def test_only_responses_have_a_loss_and_all_end(tmp_path):
    data = corpus_of(tmp_path, [[("ab", "c"), ("d", "ef")], [("g", "h")]])
    batch = data.batch(np.array([0, 1]))
    offset = 3  # special tokens before the bytes
    assert (batch.tokens[0] - offset).tolist() == [-2, 97, 98, 99, -1, 100, 101, 102, -1]
    assert batch.is_target[0].tolist() == [False, False, False, True, True, False, True, True, True]
    assert batch.is_target[1].tolist() == [False, False, True, True, *[False] * 5]
    assert data.lengths().tolist() == [9, 4]
    assert data.loss_count(np.array([0, 1])) == 7


def test_pack_fills_rows_and_uses_each_example_once():
    lengths = np.random.default_rng(0).integers(3, 40, 200)
    rows = pack(lengths, np.arange(200), 64)
    assert sorted(index for row in rows for index in row) == list(range(200))
    assert max(lengths[row].sum() for row in rows) <= 64
    assert len(rows) <= 1.05 * lengths.sum() / 64


def test_packed_sampler_is_a_function_of_epoch_and_index(tmp_path):
    data = corpus_of(tmp_path, [[("a" * (1 + index % 7), "b" * (1 + index % 5))] for index in range(50)])
    sampler, other = (PackedSampler(data, width=32, batch_tokens=96, seed=0) for _ in range(2))
    assert sampler.rows == 3
    other.batch(1, 0)
    assert torch.equal(sampler.batch(0, 2).tokens, other.batch(0, 2).tokens)
    counts = [sampler.batch(0, index).is_target.sum() for index in range(sampler.batches(0))]
    assert sum(counts) == data.loss_count(np.arange(50))


POSITIONS = ("none", "sinusoidal", "learned", "relative", "relative-bias", "alibi", "rotary")


def tiny_model(position_encoding: str = "rotary", **options) -> torch.nn.Module:
    torch.manual_seed(0)
    values = {**GPT, "position_encoding": position_encoding, "hidden_size": 16, "num_layers": 2, "zero_init": False, **options}
    config = parse_config(LanguageModelConfig, values, prefix="model").with_defaults()
    return language_model(config, vocab_size=300, context_length=64, vocabulary="")


def test_positions_in_texts():
    assert positions_in_texts(torch.tensor([[1, 1, 2, 2, 2, 3], [1, 2, 3, 4, 4, 4]])).tolist() == [
        [0, 1, 0, 1, 2, 0],
        [0, 0, 0, 0, 1, 2],
    ]


@pytest.mark.parametrize("positions", POSITIONS)
def test_packed_examples_equal_separate_ones(tmp_path, positions):
    data = corpus_of(tmp_path, [[("abcd", "ef")], [("gh", "ijklm"), ("no", "p")], [("q", "r")]])
    model = tiny_model(positions)
    packed = data.packed_batch([[1, 2], [0]], 24)
    results = []
    for batch in (packed, data.batch(np.arange(3))):
        total = token_losses(model, batch).sum()
        results.append([total, *torch.autograd.grad(total, list(model.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


def test_packed_padding_is_not_routed_to_experts(tmp_path):
    data = corpus_of(tmp_path, [[("abcd", "ef")], [("gh", "ijklm"), ("no", "p")], [("q", "r")]])
    model = tiny_model(num_experts=4, ffn_dim=16)
    results = []
    for batch in (data.packed_batch([[1, 2], [0]], 48), data.batch(np.arange(3))):
        layers = list(expert_layers(model).values())
        for layer in layers:
            layer.start_recording()
        total = token_losses(model, batch).sum()
        loads = [layer.stop_recording() for layer in layers]
        results.append([total, *torch.autograd.grad(total, list(model.parameters()), retain_graph=True)])
        results[-1].append(torch.stack([load.num_tokens for load in loads]))
    packed, separate = results
    for ours, theirs in zip(packed[:-1], separate[:-1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)
    # the last token of an example is no input in a row of its own; in a packed row it is, before the next or before padding
    assert (separate[-1] == data.sizes.sum() - 3).all()
    assert (packed[-1] == data.sizes.sum()).all()


def test_packed_examples_do_not_see_each_other(tmp_path):
    model = tiny_model()
    tokens = torch.randint(3, 200, (1, 12), generator=torch.Generator().manual_seed(0))
    texts = torch.tensor([[1] * 5 + [2] * 7])
    changed = tokens.clone()
    changed[:, :5] += 1
    batches = [ResponseBatch(part, torch.ones(1, 12, dtype=torch.bool), texts) for part in (tokens, changed)]
    first, second = (token_losses(model, batch) for batch in batches)
    assert torch.equal(first[:, 5:], second[:, 5:])
    assert not torch.equal(first[:, :4], second[:, :4])


# ---- adapters


def test_adapters_start_as_the_model_and_merge_into_it():
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    batch = ResponseBatch(torch.arange(3, 15)[None], torch.ones(1, 12, dtype=torch.bool))
    expected = token_losses(model, batch).detach()
    assert add_adapters(model, model.stack, 4) == 8
    torch.testing.assert_close(token_losses(model, batch), expected)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert trained == adapter_names(model.state_dict())
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    adapted = token_losses(model, batch).detach()
    assert not torch.allclose(adapted, expected)
    merged = merge_adapters(model.state_dict())
    plain = tiny_model()
    plain.load_state_dict(merged)
    torch.testing.assert_close(token_losses(plain, batch), adapted, rtol=1e-4, atol=1e-5)
    assert set(merged) == set(before)


def test_adapters_of_a_mixture_of_experts_are_those_of_attention():
    model = tiny_model(num_experts=4, ffn_dim=16)
    batch = ResponseBatch(torch.arange(3, 15)[None], torch.ones(1, 12, dtype=torch.bool))
    assert add_adapters(model, model.stack, 4) == 4
    token_losses(model, batch).sum().backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert all(weight.grad is not None for weight in trained.values())
    assert not any("router" in name for name in trained)


# ---- runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("instructions")
    write_jsonl(folder / "train.jsonl", examples())
    (folder / "text.txt").write_text("".join(f"{row['instruction']} {row['output']}\n" for row in examples()))
    return folder


def run_file(folder: Path, **sections: dict) -> dict:
    return {
        "task": "instruction-tuning",
        "data": {"train": str(folder / "train.jsonl"), "valid": 0.2, "max_length": 140, **sections.get("data", {})},
        "tokenizer": {"type": "char"},
        "model": {"hidden_size": 32, "num_layers": 1, **sections.get("model", {})},
        "train": {"max_steps": 6, "num_validations": 2, "batch_tokens": 512, "device": "cpu", **sections.get("train", {})},
    }


@pytest.fixture(scope="module")
def run(folder) -> weft.Run:
    values = run_file(folder, train={"max_steps": 60, "lr": 1e-2, "num_samples": 1})
    return weft.train(values, output_dir=folder / "run")


def test_a_run_learns_and_stores_its_template(run):
    assert run.evaluate()["loss"].value < 1.5
    assert run.config.data.template.startswith("### Instruction:")
    lines = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().split("\n") if line]
    assert lines[-1]["prompt"] == "### Instruction:\nRepeat tiger.\n\n### Response:\n"


def test_loss_equals_the_scores_of_the_responses(run):
    records = examples()[-10:]
    scores = run.score([(row["instruction"], row["output"]) for row in records])
    total = -sum(score.log_prob for score in scores) / sum(len(score.tokens) for score in scores)
    assert run.evaluate()["loss"].value == pytest.approx(total, abs=1e-5)
    assert scores[0].tokens[-1] == "</s>"
    assert scores[0].perplexity == pytest.approx(np.exp(-scores[0].log_prob / len(scores[0].tokens)))
    with pytest.raises(DataError, match="expected a prompt and a response"):
        run.score([("a", "b", "c")])


def test_generate_puts_the_prompt_into_the_template(run):
    text = run.generate("Repeat river.", temperature=0.0, max_new_tokens=8).text
    assert "".join(run.stream("Repeat river.", temperature=0.0, max_new_tokens=8)) == text
    prompt = run.config.data.read_template().prompt("Repeat river.")
    ids = [1, *run.vocabulary.encode(prompt).tolist()]
    assert run.spec.decode.prompt_ids(run, "Repeat river.") == ids
    log_probs, _ = run.model.start(torch.tensor([ids]))
    assert text[:1] == run.vocabulary.decode([int(log_probs[0, 3:].argmax()) + 3])


def test_conversations_contain_the_turns_before(run):
    from weft.decode import generate as decoding
    from weft.decode.generate import Frame
    from weft.decode.options import GenerationConfig

    options = GenerationConfig(temperature=0.0, max_new_tokens=4)
    template, encode, chat = run.predictor.template, run.vocabulary.encode, run.spec.decode.chat
    turns = [("Repeat lamp.", "lamp"), ("Repeat cloud.", "cloud")]
    history = [[*encode(template.prompt(prompt)).tolist(), *encode(text).tolist(), 2] for prompt, text in turns]
    messages = [message for prompt, text in turns for message in (("user", prompt), ("assistant", text))]
    messages.append(("user", "Repeat river."))
    last = template.prompt("Repeat river.")
    # both turns do not fit
    assert 1 + sum(map(len, history)) + len(encode(last)) + 4 > run.config.data.max_length >= 1 + 2 * len(history[1]) + 4
    frame = Frame(2, [1, *history[1]])
    expected = "".join(decoding.stream(run.model, run.vocabulary, last, options, frame=frame))
    assert "".join(chat(run, messages, options)) == "".join(chat(run, messages[2:], options)) == expected
    with pytest.raises(UsageError, match="messages: the last message is not of the user"):
        chat(run, messages[:2], options)
    with pytest.raises(UsageError, match="messages: the user and the assistant must take turns, the user first"):
        chat(run, [("user", "a"), ("user", "b")], options)
    with pytest.raises(UsageError, match="messages: only the first message can be of the system"):
        chat(run, [("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d")], options)


def test_explanations_of_a_response(run):
    text = "Repeat river."
    surprisal = run.explain(text, "surprisal", target="river")
    assert surprisal.data["nats"] == pytest.approx([-value for value in run.score((text, "river")).token_log_probs], abs=1e-4)
    for view in ("attribution", "attention", "logit-lens", "distribution", "beam-search", "gradient-flow"):
        assert run.explain(text, view).data, view
    assert run.explain(text, "surprisal").data


def test_chat_reads_lines_and_commands(run, monkeypatch, capsys):
    class Input(io.StringIO):
        buffer = io.BytesIO(b"Repeat river.\n\n/reset\nRepeat lamp.\n\xff\n/quit\nRepeat apple.\n")

    monkeypatch.setattr("sys.stdin", Input())
    assert main(["chat", str(run.path), "--temperature", "0", "--max-new-tokens", "8", "--json"]) == 3
    captured = capsys.readouterr()
    prompts = [json.loads(line)["prompt"] for line in captured.out.strip().split("\n")]
    assert prompts == ["Repeat river.", "Repeat lamp."]
    assert "invalid utf-8" in captured.err


def test_chat_says_once_that_the_first_messages_do_not_fit(run, monkeypatch, capsys):
    class Input(io.StringIO):
        buffer = io.BytesIO(b"Repeat river.\n" * 8 + b"/reset\n" + b"Repeat river.\n")

    monkeypatch.setattr("sys.stdin", Input())
    assert main(["chat", str(run.path), "--temperature", "0", "--max-new-tokens", "4"]) == 0
    err = capsys.readouterr().err
    assert err.count(f"The conversation is longer than data.max_length = {run.config.data.max_length}") == 1
    monkeypatch.setattr("sys.stdin", Input())
    Input.buffer.seek(0)
    assert main(["chat", str(run.path), "--temperature", "0", "--max-new-tokens", "4", "--quiet"]) == 0
    assert "longer" not in capsys.readouterr().err


def test_chat_prints_responses_only(run, monkeypatch, capsys):
    class Input(io.StringIO):
        buffer = io.BytesIO(b"Repeat river.\n")

    monkeypatch.setattr("sys.stdin", Input())
    assert main(["chat", str(run.path), "--temperature", "0", "--max-new-tokens", "8", "--system", "Be brief."]) == 0
    assert capsys.readouterr().out.strip()


def test_chat_with_damaged_weights_ends(run, tmp_path, monkeypatch, capsys):
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert main(["chat", str(tmp_path / "run")]) == 4
    error = capsys.readouterr().err
    assert error.count("corrupted or not a safetensors file") == 1
    assert error.startswith("weft: error: ")


def test_chat_refuses_other_models(folder, capsys, language_model_run):
    assert main(["chat", str(language_model_run)]) == 2
    assert "models of task 'lm' do not talk; use weft generate" in capsys.readouterr().err


@pytest.fixture(scope="module")
def language_model_run(folder) -> Path:
    weft.train(
        {
            "task": "lm",
            "data": {"train": str(folder / "text.txt"), "context_length": 80},
            "tokenizer": {"type": "char"},
            "model": {"hidden_size": 32, "num_layers": 1},
            "train": {"max_steps": 6, "batch_tokens": 512, "device": "cpu"},
        },
        output_dir=folder / "lm",
    )
    return folder / "lm"


def test_adapters_train_on_a_language_model_and_merge(folder, language_model_run, capsys):
    (folder / "lora.toml").write_text(
        'task = "instruction-tuning"\n[data]\ntrain = "train.jsonl"\nvalid = 0.2\nmax_length = 80\n'
        "[model]\nlora_rank = 2\nlora_output = false\n"
        '[train]\nmax_steps = 4\nnum_validations = 1\nbatch_tokens = 512\ndevice = "cpu"\nlr = 0.01\n'
    )
    arguments = ["train", str(folder / "lora.toml"), "--init-from", str(language_model_run), "-o", str(folder / "lora"), "-q"]
    assert main(arguments) == 0
    base, tuned = weft.load(language_model_run), weft.load(folder / "lora")
    assert tuned.config.model.hidden_size == 32  # of the language model
    for name, weight in base.model.state_dict().items():
        assert torch.equal(weight, tuned.model.state_dict()[name]), name
    flow = ["explain", str(folder / "lora"), "Repeat tiger.", "--view", "gradient-flow", "-o", str(folder / "flow.json"), "-q"]
    assert main(flow) == 0  # through weights that training froze
    assert main(["prune", str(folder / "lora"), "--remove", "1", "-o", str(folder / "pruned"), "-q"]) == 2
    problem = "lora: has LoRA adapters, which do not belong to single heads; merge them with weft merge"
    assert problem in capsys.readouterr().err
    assert main(["merge", str(folder / "lora"), "-o", str(folder / "merged")]) == 0
    merged = weft.load(folder / "merged")
    assert merged.config.model.lora_rank == 0
    assert merged.evaluate()["loss"].value == pytest.approx(tuned.evaluate()["loss"].value, abs=1e-4)
    with pytest.raises(UsageError, match="has no LoRA adapters; use it as it is"):
        weft.merge(folder / "merged", folder / "again")
    # a run without adapters starts from the merged weights
    values = run_file(folder, train={"init_from": str(folder / "lora"), "max_steps": 1, "lr": 1e-12})
    values["tokenizer"] = {"file": str(folder / "lora" / "tokenizer.json")}
    plain = weft.train(values, output_dir=folder / "plain")
    assert plain.evaluate()["loss"].value == pytest.approx(tuned.evaluate()["loss"].value, abs=1e-4)


@pytest.mark.parametrize("task", ["dpo", "policy-gradient", "instruction-tuning"])
def test_a_run_that_starts_from_another_gets_its_template_tokenizer_and_model(run, task):
    from weft.runs.job import with_tokenizer_of_init

    values = {"task": task, "data": {"train": "a.jsonl", "system_template": "{system}"}, "model": {"dropout": 0.2}}
    completed = with_tokenizer_of_init(values, run.path)
    assert completed["data"] == {
        "train": "a.jsonl",
        "template": run.config.data.template,
        "system_template": "{system}",
    }
    assert completed["tokenizer"] == {"file": str((run.path / "tokenizer.json").resolve())}
    model = {**run.config.to_dict()["model"], "dropout": 0.2}
    assert completed["model"] == model


def test_packed_training(folder):
    values = run_file(folder, data={"packing": True, "response_only": False})
    run = weft.train(values, output_dir=folder / "packed")
    assert run.evaluate()["loss"].value > 0
    assert dialogue_edges(run.config.datasets["train"])[-1] == 38


def test_long_examples_are_counted_and_skipped_or_refused(folder, tmp_path):
    rows = [*examples()[:10], {"instruction": "Repeat " + "long " * 20, "output": "x"}]
    write_jsonl(tmp_path / "train.jsonl", rows)
    notes = []

    class Callback(weft.TrainCallback):
        def on_note(self, text: str) -> None:
            notes.append(text)

    values = run_file(tmp_path, data={"valid": "train.jsonl"}, train={"max_steps": 1})
    values["data"]["valid"] = str(tmp_path / "train.jsonl")
    run = weft.train(values, output_dir=tmp_path / "run", callback=Callback())
    assert "train: 1 example is longer than data.max_length = 140 tokens and is skipped" in notes
    evaluation = run.evaluate()
    assert evaluation.notes == ("1 example longer than data.max_length skipped",)
    assert len(evaluation.items.keys) == 10
    values["data"]["skip_long"] = False
    with pytest.raises(DataError) as error:
        weft.train(values, output_dir=tmp_path / "other")
    assert str(error.value).startswith(f"{tmp_path / 'train.jsonl'}:11: prompt and response have 143 tokens, more than")
    assert str(error.value).endswith("increase it or set data.skip_long = true")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"data": {"packing": True}, "model": {"arch": "lstm"}},
            "data.packing: requires attention layers without convolutions; set it to false",
        ),
        ({"model": {"lora_rank": 4}}, "model.lora_rank: requires weights to adapt; set train.init_from or lora_rank = 0"),
        ({"model": {"arch": "gru", "lora_rank": 4}}, "model.lora_rank: not possible with layer_type 'gru'; set it to 0"),
    ],
)
def test_impossible_combinations_are_refused(folder, sections, message):
    with pytest.raises(ConfigError) as error:
        weft.train(run_file(folder, **sections), output_dir=folder / "refused")
    assert str(error.value) == message
