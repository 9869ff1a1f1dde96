"""The table of export formats: what check, info and export say about a run, model cards, and the documentation."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import expect_error
from export_runs import LLAMA, TRAIN, encoder_run, lm_run, lm_values
from small_runs import make_text, train_here

import weft
from weft.cli.main import main
from weft.errors import ResourceError, UsageError
from weft.interop.export_record import ExportOptions
from weft.interop.formats import FORMATS, all_problems, check_export, export_run, lost_formats
from weft.interop.model_card import card, read_scores, without_paths
from weft.runs.resolve import resolve

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
DOCS = Path(__file__).parents[1] / "docs" / "how-to" / "export.md"
SOFTCAP = (
    "Apertus, the nearest architecture, has no equivalent of model.logit_softcap = 15, model.head_bias = true, "
    "model.bias = true; train with model.logit_softcap = 0, model.head_bias = false, model.bias = false"
)


def config(tmp_path: Path, task: str, model: dict[str, Any], **tables: Any) -> Any:
    return resolve({"task": task, "data": {"train": "x.txt"}, "model": model, **tables}, base=tmp_path)


# ---- the table


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_module_with_both_functions(name, tmp_path):
    module = import_module(FORMATS[name].module)
    assert callable(module.problems) and callable(module.export)
    problems = FORMATS[name].problems(config(tmp_path, "classification", {"arch": "naive-bayes"}))
    assert problems and all(isinstance(problem, str) for problem in problems)


def test_problems_need_no_weights_and_no_data(tmp_path):
    expected = {
        ("lm", "gpt"): set(),
        ("lm", "ngram"): {"arpa"},
        ("masked-lm", "bert"): {"hf", "sentence-transformers"},
        ("tagging", "bert"): {"hf"},
        ("classification", "naive-bayes"): set(),
        ("word-vectors", "skip-gram"): {"vectors"},
        ("asr", "lstm"): set(),
    }
    ours = {"hf", "sentence-transformers", "gguf", "arpa", "vectors"}
    for (task, arch), possible in expected.items():
        found = all_problems(config(tmp_path, task, {"arch": arch}))
        assert {name for name in ours if not found[name]} == possible, (task, arch)
    llama = config(tmp_path, "lm", LLAMA, tokenizer={"type": "byte"})
    assert not all_problems(llama)["gguf"] and not all_problems(llama)["hf"]


def test_gguf_reads_the_tokenizer_file(tmp_path):
    run = lm_run(tmp_path, LLAMA)
    file = {"file": str(run.directory.tokenizer)}
    (problem,) = FORMATS["gguf"].problems(config(tmp_path, "lm", LLAMA, tokenizer=file))
    assert problem.startswith("tokenizer.file = 'tokenizer.json': llama.cpp would split a text into other tokens; use ")
    lowercase = config(tmp_path, "lm", LLAMA, tokenizer={"type": "byte", "lowercase": True})
    assert FORMATS["gguf"].problems(lowercase)[0].startswith("tokenizer.lowercase = true: llama.cpp would split")


def test_packages_and_quantizations_are_checked_first(tmp_path, monkeypatch):
    llama = config(tmp_path, "lm", LLAMA, tokenizer={"type": "byte"})
    cases = {
        "hf": "quantization: format 'hf' has no quantization 'int4'; remove it",
        "gguf": "quantization: format 'gguf' has no quantization 'int4'; choose from f16, q8_0",
    }
    for name, message in cases.items():
        with pytest.raises(UsageError) as caught:
            check_export(name, llama, ExportOptions("int4"))
        assert str(caught.value) == message
    monkeypatch.setattr("weft.interop.formats.find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        check_export("gguf", llama, ExportOptions())
    assert str(caught.value) == "format: 'gguf' needs the package gguf; run pip install 'weft[gguf]'"


# ---- commands


def test_check_info_and_export_say_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    values = {**lm_values(tmp_path, {"arch": "gpt"}), "recommend": False, "train": TRAIN}
    train_here(values, tmp_path / "run")
    run_file = tmp_path / "run" / "resolved.toml"
    assert main(["check", str(run_file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["export"]
    assert found["hf"] == [SOFTCAP] and list(found) == list(FORMATS)
    assert main(["info", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["export"] == found
    assert main(["info", str(tmp_path / "run")]) == 0
    listed = ", ".join(name for name in FORMATS if not found[name]) or "no format"
    assert re.search(rf"^Export +{listed}$", capsys.readouterr().out, re.MULTILINE)
    assert main(["export", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith(f"hf no: {SOFTCAP} sentence-transformers no: arch 'gpt' of task 'lm' has no text ")
    assert max(map(len, out.splitlines())) <= 100
    assert main(["check", str(run_file)]) == 0
    shown = capsys.readouterr().out
    assert " ".join(shown.partition("\nExport\n")[2].split()).startswith(f"hf no: {SOFTCAP} ctranslate2 yes onnx yes gguf no: ")
    assert "arpa" not in shown and "vectors" not in shown  # of other tasks
    target = tmp_path / "new" / "out"
    assert expect_error(capsys, "export", str(tmp_path / "run"), "-o", str(target)) == (2, f"export: {SOFTCAP}")
    assert not target.parent.exists()


# ---- model cards


def parts_of(text: str) -> tuple[dict[str, Any], str]:
    """The head and the text of a card."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    _, head, rest = text.split("---\n", 2)
    return yaml.safe_load(head), rest


def code_of(text: str) -> str:
    match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    return match[1]


def test_the_card_describes_the_run_and_its_code_runs(tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    run = weft.load(lm_run(tmp_path, LLAMA, valid=0.2, test=0.2, context_length=64).path, device="cpu")
    assert main(["evaluate", str(run.path), "--json", "-q"]) == 0
    (tmp_path / "scores.json").write_text(capsys.readouterr().out)
    words = ["--format", "hf", "--license", "mit", "--scores", str(tmp_path / "scores.json"), "-o", str(tmp_path / "out")]
    assert main(["export", str(run.path), *words]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    head, rest = parts_of(text)
    assert head["license"] == "mit" and head["library_name"] == "transformers" and head["pipeline_tag"] == "text-generation"
    (result,) = head["model-index"][0]["results"]
    scores = read_scores(tmp_path / "scores.json").scores
    loss = next(score for score in scores if score.name == "loss")
    assert result["metrics"][0] == {"type": "loss", "name": "loss", "value": loss.value}
    assert result["dataset"]["name"] == "text.txt"
    assert f"[{loss.low:.3f}, {loss.high:.3f}]" in rest and loss.signature in rest
    assert "- The model was trained with contexts of 64 tokens" in rest
    assert f"| size | {run.num_parameters:,} parameters |" in rest and "| train | `text.txt` |" in rest
    assert str(tmp_path) not in text
    settings = re.search(r"```toml\n(.*?)```", rest, re.DOTALL)
    assert settings is not None and tomllib.loads(settings[1])["model"]["activation"] == "swiglu"
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert record["files"]["README.md"]["size"] == len(text.encode()) and "model.safetensors" in record["files"]
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "out")
    exec(code_of(rest), {})
    start = run.vocabulary.decode(run.spec.decode.prompt_ids(run, "A prompt"))
    output = run.generate("A prompt", max_new_tokens=20, temperature=0).token_ids
    assert capsys.readouterr().out == f"{start}{run.vocabulary.decode(output)}\n"


@pytest.mark.parametrize("task", ["masked-lm", "classification", "tagging"])
def test_the_code_of_other_cards_runs(tmp_path, task, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    run = encoder_run(tmp_path, task, {"pooling": "first"} if task == "classification" else {})
    export_run(run, "hf", tmp_path / "out", ExportOptions())
    head, rest = parts_of((tmp_path / "out" / "README.md").read_text())
    assert head["license"] == "unknown" and "The license is unknown" in rest
    assert "The model was not evaluated." in rest  # there is no validation data
    monkeypatch.chdir(tmp_path / "out")
    exec(code_of(rest), {})
    out = capsys.readouterr().out.strip()
    if task == "classification":
        assert out == run.predict("A text").label
    elif task == "tagging":
        assert out == str(list(run.predict(["A sentence"])[0].tags))
    else:
        assert out == f"torch.Size([1, {2 + len(run.vocabulary.encode('A text'))}, 16])"


def test_other_formats_have_the_call_of_their_record(tmp_path):
    run = lm_run(tmp_path, LLAMA)
    (tmp_path / "export.json").write_text(json.dumps({"call": "engine.run(DIR)", "check": {"max_difference": 1.5e-6}}))
    text = card(run, "onnx", tmp_path, ExportOptions("int8"), ["something is rounded"])
    assert "engine.run(DIR)" in text and "| weights | int8 |" in text and "by at most 1.5e-06" in text
    assert "- Something is rounded." in text


def test_scores_must_be_those_of_evaluate(tmp_path):
    (tmp_path / "scores.json").write_text('{"scores": [{"name": "loss"}]}')
    with pytest.raises(UsageError) as caught:
        read_scores(tmp_path / "scores.json")
    assert str(caught.value) == f"scores: {tmp_path / 'scores.json'} has no scores; write it with weft evaluate RUN --json"


def test_paths_become_names():
    assert without_paths({"a": ["/x/y.txt", 1], "b": {"c": "/z", "d": "e/f"}}) == {
        "a": ["y.txt", 1],
        "b": {"c": "z", "d": "e/f"},
    }


# ---- an imported or fitted run


def test_an_n_gram_model_is_a_file(tmp_path):
    text = make_text(tmp_path / "text.txt")
    train_here({"task": "lm", "data": {"train": str(text)}, "model": {"arch": "ngram", "order": 2}}, tmp_path / "run")
    run: Any = weft.load(tmp_path / "run")
    export_run(run, "arpa", tmp_path / "out.arpa", ExportOptions())
    assert "\\data\\\n" in (tmp_path / "out.arpa").read_text()
    with pytest.raises(UsageError, match=r"out\.arpa already exists"):
        export_run(run, "arpa", tmp_path / "out.arpa", ExportOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.arpa", "run", "text.txt"]


# ---- directories are complete or absent


def test_a_directory_is_complete_or_absent(tmp_path, monkeypatch, capsys):
    run = lm_run(tmp_path, LLAMA)

    def fail(run, name, directory, options, notes):
        assert not (tmp_path / "a" / "b").exists()  # the model card is written before the directory gets its name
        raise ResourceError("README.md", "no space left on disk")

    def fail_in_directory(run, name, directory, options, notes):
        raise ResourceError(directory / "README.md", "no space left on disk; nothing was changed")

    for write_card in (fail, fail_in_directory):
        with monkeypatch.context() as patch:
            patch.setattr("weft.interop.model_card.write_card", write_card)
            assert main(["export", str(run.path), "-o", str(tmp_path / "a" / "b"), "-q"]) == 5
        assert not (tmp_path / "a").exists()
    assert f"{tmp_path / 'a' / 'b'}: no space left on disk" in capsys.readouterr().err

    def written_by_another(run, name, directory, options, notes):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "model.bin").write_text("theirs")

    monkeypatch.setattr("weft.interop.model_card.write_card", written_by_another)
    assert main(["export", str(run.path), "-o", str(tmp_path / "out"), "-q"]) == 5
    assert (tmp_path / "out" / "model.bin").read_text() == "theirs"


def test_the_current_directory_stays_the_same_directory(tmp_path, monkeypatch):
    run = lm_run(tmp_path, LLAMA)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    assert main(["export", "../run", "-o", ".", "-q"]) == 0
    assert {"README.md", "export.json", "config.json"} <= {path.name for path in Path().iterdir()}
    monkeypatch.chdir(run.path)
    assert main(["export", ".", "-o", "../named", "-q"]) == 0
    assert json.loads((tmp_path / "named" / "export.json").read_text())["run"] == "run"
    assert "# run\n" in (tmp_path / "named" / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"license": "mit"}, "license: format 'arpa' has no model card; remove it"),
        ({"scores": Path("scores.json")}, "scores: format 'arpa' has no model card; remove it"),
    ],
)
def test_files_have_no_model_card(tmp_path, options, message):
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        check_export("arpa", lm_run(tmp_path, LLAMA).config, ExportOptions(**options))


@pytest.mark.parametrize("name", ["", "a\nb: c", "x" * 101])
def test_a_license_is_an_id(tmp_path, name):
    with pytest.raises(UsageError) as caught:
        check_export("hf", lm_run(tmp_path, LLAMA).config, ExportOptions(license=name))
    assert str(caught.value) == f"license: expected an ID, got {name!r}; use one such as apache-2.0"


# ---- documentation


def test_the_page_lists_the_formats():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(name, text) for name, text in rows if name in FORMATS] == [(name, row.summary) for name, row in FORMATS.items()]


BASES: dict[tuple[str, str], dict[str, Any]] = {
    ("lm", "rotary"): {"model": LLAMA, "tokenizer": {"type": "byte"}},
    ("lm", "learned"): {"model": {"arch": "transformer"}, "tokenizer": {"type": "byte"}},
    ("masked-lm", "bert"): {"model": {"arch": "bert"}},
    ("classification", "bert"): {"model": {"arch": "bert", "pooling": "first"}},
    ("tagging", "bert"): {"model": {"arch": "bert"}},
    ("seq2seq", "transformer"): {"model": {"arch": "transformer"}},
}
PREVENTS = re.findall(
    r"^\| `([a-z0-9-]+)` \| ([a-z]+) \| `(\w+)\.(\w+) = (.+?)` \| (.+) \|$", DOCS.read_text("utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("row", PREVENTS, ids=lambda row: f"{row[0]}-{row[3]}-{row[4]}")
def test_the_page_names_the_options_that_prevent_a_format(row, tmp_path):
    task, base, table, option, value, formats = row
    values = {"task": task, "data": {"train": "x.tsv"}, **BASES[task, base]}
    shown = re.findall(r"`([a-z0-9-]+)`", formats)
    possible = [name for name, problems in all_problems(resolve(values, base=tmp_path)).items() if not problems]
    changed = {**values, table: {**values.get(table, {}), option: tomllib.loads(f"x = {value}")["x"]}}
    lost = lost_formats(resolve(changed, base=tmp_path))[f"{table}.{option}"]
    assert [name for name in lost if name in possible] == shown


def test_the_page_has_the_rows():
    assert len(PREVENTS) == 19
