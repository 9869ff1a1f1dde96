"""`weft demo` on a small text, with small models."""

from __future__ import annotations

import json

import pytest

from weft.cli import demo
from weft.cli.main import main


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "text", lambda: "The cat sat on the mat. A class is a class.\n" * 200)
    monkeypatch.setattr(demo, "COMMON", {**demo.COMMON, "data": {"train": "text.txt", "valid": 0.1, "window": 16}})
    short = {"steps": 4, "batch_tokens": 64, "validations": 1}
    models = {name: {**values, "train": short} for name, values in demo.MODELS.items()}
    models["lstm"]["model"] = {"kind": "lstm", "width": 16}
    models["gpt"]["model"] = {"kind": "gpt", "width": 16, "layers": 1}
    monkeypatch.setattr(demo, "MODELS", models)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_trains_three_models_with_one_tokenizer_and_compares_them(small, capsys):
    assert main(["demo", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in found["models"]] == ["ngram", "lstm", "gpt"]
    assert all(0 < row["bits_per_character"] < 8 and row["seconds"] > 0 for row in found["models"])
    assert all(row["tokens_per_second"] > 0 and row["sample"].startswith("The ") for row in found["models"])
    files = {(small / "runs/demo" / name / "tokenizer.json").read_bytes() for name in ("ngram", "lstm", "gpt")}
    assert len(files) == 1


def test_the_demo_prints_a_table_and_a_sample_of_each_and_trains_once(small, capsys):
    assert main(["demo", "--quiet"]) == 0
    first = capsys.readouterr()
    lines = first.out.split("\n")
    assert lines[1].split() == ["model", "parameters", "bits/character", "tokens/s", "seconds"]
    assert [line.split()[0] for line in lines[2:5]] == ["ngram", "lstm", "gpt"]
    assert [line for line in lines if line.startswith("---")] == ["--- ngram", "--- lstm", "--- gpt"]
    weights = small / "runs/demo/gpt/model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["demo"]) == 0
    again = capsys.readouterr()
    assert weights.stat().st_mtime_ns == before and again.out == first.out
    assert again.err.count("trained before; remove the folder to train it again") == 3


def test_the_demo_reads_a_text_that_every_python_has():
    assert len(demo.text()) > 100_000 and "statement" in demo.text()
