"""The decoding engine of a run: rows are admitted and cancelled between steps."""

from __future__ import annotations

import pytest
from small_runs import make_text, run_file, train_here

import weft
from weft.errors import UsageError


def test_engine_equals_generate(tmp_path):
    values = run_file(make_text(tmp_path / "text.txt"), "lstm", train__max_steps=3)
    run = weft.load(train_here(values, tmp_path / "run").path, device="cpu")
    engine = run.engine()
    (first,) = engine.admit([run.request("to be", max_new_tokens=6)])
    (second,) = engine.admit([run.request("or", max_new_tokens=3)])
    assert engine.running == [first, second]
    engine.cancel(second)
    written = []
    while engine.running:
        written += [event.token for event in engine.step() if event.row == first]
    assert written == run.generate("to be", max_new_tokens=6, temperature=0.0).token_ids


def test_a_model_without_tokens_has_no_engine(tmp_path):
    reviews = {"text": ["good soup", "bad soup"], "label": ["good", "bad"]}
    values = {"task": "classification", "model": {"arch": "naive-bayes"}}
    bayes = weft.train(values, output_dir=tmp_path / "bayes", data={"train": reviews})
    assert (bayes.task, bayes.arch, bayes.path) == ("classification", "naive-bayes", tmp_path / "bayes")
    assert bayes.predict("good soup").label == "good"
    assert bayes.invalid_inputs(["good", "a\0b"]).keys() == {1}
    with pytest.raises(UsageError) as caught:
        bayes.engine()
    assert str(caught.value) == f"{tmp_path / 'bayes'}: models of task 'classification' assign no probabilities to texts"
    with pytest.raises(UsageError) as caught:
        bayes.embed(["good soup"])
    assert str(caught.value) == f"{tmp_path / 'bayes'}: naive-bayes has no text encoder"
