"""Detection of shifted lines in parallel text from line lengths alone."""

from __future__ import annotations

import numpy as np
import pytest

from weft.data.alignment import Misalignment, find_misalignment, first_misalignment


def translations(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of sentences, and of translations a fifth longer, give or take a seventh."""
    random = np.random.default_rng(seed)
    source = random.gamma(6.0, 10.0, size=count) + 1
    return source.astype(int), (source * 1.2 * random.lognormal(0.0, 0.15, size=count)).astype(int)


@pytest.mark.parametrize("at", [0, 1, 250, 990])
@pytest.mark.parametrize("gone", [1, 4])
def test_missing_lines_are_located(at, gone):
    source, target = translations(1000)
    missing = np.arange(at, at + gone)
    assert abs(first_misalignment(source, np.delete(target, missing)) - at) <= 6
    assert abs(first_misalignment(np.delete(source, missing), target) - at) <= 6


def test_missing_lines_at_the_end_are_located():
    source, target = translations(1000)
    assert first_misalignment(source, target[:-3]) == 997
    assert first_misalignment(np.array([3, 4, 5]), np.array([3, 4])) == 2
    assert first_misalignment(np.array([7]), np.array([7, 7])) == 1


@pytest.mark.parametrize("shift", [1, -1, 2, -3])
def test_a_shifted_range_of_lines_is_detected_with_its_shift(shift):
    source, target = translations(2000)
    low, high = 400, 1200
    slipped = target.copy()
    slipped[low:high] = np.roll(target[low:high], shift)
    found = find_misalignment(source, slipped)
    assert found is not None
    assert found.shift == shift
    assert abs(found.first - low) <= 8
    assert abs(found.last - high) <= 8


def test_a_shift_of_the_whole_text_is_detected():
    source, target = translations(2000)
    found = find_misalignment(source, np.concatenate([[30], target[:-1]]))
    assert found is not None
    assert found == Misalignment(found.first, found.last, 1)
    assert found.last - found.first > 1950


@pytest.mark.parametrize("seed", range(5))
def test_aligned_lines_have_no_findings(seed):
    source, target = translations(5000, seed)
    random = np.random.default_rng(seed)
    assert find_misalignment(source, target) is None
    assert find_misalignment(source, random.permutation(target)) is None
    assert find_misalignment(np.sort(source), np.sort(target)) is None
    assert find_misalignment(source, np.full(5000, 1)) is None
    assert find_misalignment(source[:1], target[:1]) is None
    assert find_misalignment(source[:2], target[:2]) is None


def test_predictions_include_alignments_on_request(tmp_path_factory):
    from seq2seq_runs import Seq2SeqRuns

    from weft.runs.load import load
    from weft.tasks.seq2seq.task import SEQ2SEQ

    run = load(Seq2SeqRuns(tmp_path_factory.mktemp("runs")).run_dir("luong"), SEQ2SEQ, device="cpu")
    lines = ["abc", "", "fade"]
    asked, plain = run.predict(lines, n_best=2, return_alignments=True), run.predict(lines, n_best=2)
    assert [[one._replace(alignment=None) for one in best.ranked()] for best in asked] == [best.ranked() for best in plain]
    assert asked[1].alignment is None
    for line, best in ((lines[0], asked[0]), (lines[2], asked[2])):
        for one in best.ranked():
            assert one.alignment.weights.shape == (len(one.token_ids), len(line) + 1)
            assert one.alignment.weights == pytest.approx(run.predictor.align([line], [one])[0].weights, abs=1e-5)
