"""Checkpoints of several processes: files, their index, and reading any rows of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from weft import files
from weft.errors import ModelError, ResourceError
from weft.parallel.group import Group
from weft.tensors import tensor_bytes, tensor_layout, write_listed
from weft.training import checkpoint_shards as shards
from weft.training import loop_checkpoint as saving
from weft.training.checkpoint_shards import StoredTensors, divide, join_states, make_index, state_rows, together
from weft.training.snapshot import TensorFile

MESSAGE = "corrupted: it does not match the files of the checkpoint"


def group(rank: int, size: int) -> Group:
    return Group(rank, size, [f"h{number}" for number in range(size)])


def model() -> dict[str, Tensor]:
    torch.manual_seed(0)
    tied = torch.randn(50, 8)
    return {"embedding": tied, "a": torch.randn(40, 8), "b": torch.randn(3), "head": tied, "scale": torch.tensor(2.0)}


def write_checkpoint(directory: Path, content: dict[str, TensorFile], size: int) -> list[shards.Shard]:
    """The files and the index that the processes of a group write."""
    directory.mkdir()
    parts = [divide(content, group(rank, size)) for rank in range(size)]
    for part in parts:
        for name, file in part.files.items():
            layout = tensor_layout(file.tensors, file.metadata)
            write_listed(directory / name, layout, tensor_bytes(file.tensors, layout.names))
    rows = state_rows([0] * size, 1)
    files.write_json(directory / shards.INDEX, make_index([part.parts for part in parts], parts[0].tied, rows))
    return parts


def content() -> dict[str, TensorFile]:
    optimizer = {f"{name}/exp_avg": tensor + 1 for name, tensor in model().items()}
    return {"model": TensorFile(model()), "optimizer": TensorFile(optimizer), "state": TensorFile({}, {"shape": "null"})}


def whole(name: str) -> None:
    return None


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_processes_share_the_tensors_that_all_have(tmp_path, size):
    parts = write_checkpoint(tmp_path / "x", content(), size)
    bytes_of = [sum(tensor.nbytes for file in part.files.values() for tensor in file.tensors.values()) for part in parts]
    total = sum(tensor.nbytes for name, tensor in model().items() if name != "head") + sum(t.nbytes for t in model().values())
    if size == 1:
        assert list(parts[0].files) == ["model.safetensors", "optimizer.safetensors", "state.safetensors"]
        return
    assert sum(bytes_of) == total  # each tensor once, the tied one as well
    assert max(bytes_of) <= total / size + 50 * 8 * 4
    stored = StoredTensors(tmp_path / "x")
    for kind, file in (("model", model()), ("optimizer", content()["optimizer"].tensors)):
        actual = stored.read(kind, whole)
        assert actual.keys() == file.keys()
        assert all(torch.equal(actual[name], tensor) for name, tensor in file.items())
    weights = stored.read("model", whole)
    assert weights["head"] is weights["embedding"]


def test_any_rows_of_any_parts():
    chance, tensor = random.Random(1), torch.arange(24.0).reshape(12, 2)
    for _ in range(200):
        cuts = sorted(chance.sample(range(1, 12), chance.randrange(4)))
        bounds = list(zip([0, *cuts], [*cuts, 12], strict=True))
        parts = [(first, tensor[first:last]) for first, last in bounds]
        start = chance.randrange(13)
        count = chance.randrange(13 - start)
        assert torch.equal(shards._rows(parts, start, count), tensor[start : start + count])
        chance.shuffle(parts)
        assert torch.equal(shards._assemble(parts, (12, 2), None), tensor)


def change(path: Path, action: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    action(value)
    path.write_text(json.dumps(value))


DAMAGE: dict[str, Callable[[Any], None]] = {
    "no tensors": lambda index: index.pop("tensors"),
    "no parts": lambda index: index["tensors"]["model"]["a"].update(parts=[]),
    "an unknown file": lambda index: index["tensors"]["model"]["a"].update(parts=[["x.safetensors", 0]]),
    "a file elsewhere": lambda index: index["tensors"]["model"]["a"].update(parts=[["../x/index.json", 0]]),
    "another row": lambda index: index["tensors"]["model"]["a"]["parts"][0].__setitem__(1, 1),
    "another shape": lambda index: index["tensors"]["model"]["a"].update(shape=[40, 9]),
    "more rows": lambda index: index["tensors"]["model"]["a"].update(shape=[41, 8]),
    "twice": lambda index: index["tensors"]["model"]["a"]["parts"].append(index["tensors"]["model"]["a"]["parts"][0]),
    "an unknown tied tensor": lambda index: index["tied"]["model"].update(head="z"),
    "a list": lambda index: index.update(tensors=[]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_index_of_other_files_is_rejected(tmp_path, damage):
    write_checkpoint(tmp_path / "x", content(), 2)
    path = tmp_path / "x" / shards.INDEX
    change(path, DAMAGE[damage])
    with pytest.raises(ModelError) as caught:
        StoredTensors(tmp_path / "x").read("model", whole)
    assert str(caught.value) == f"{path}: {MESSAGE}"


def test_an_index_of_another_version_or_without_states_is_rejected(tmp_path):
    write_checkpoint(tmp_path / "x", content(), 2)
    path = tmp_path / "x" / shards.INDEX
    change(path, lambda index: index.update(version=2))
    with pytest.raises(ModelError) as caught:
        StoredTensors(tmp_path / "x").read("model", whole)
    assert str(caught.value) == f"{path}: format version 2 is not supported (expected 1)"
    change(path, lambda index: index.pop("state"))
    with pytest.raises(ModelError) as caught:
        StoredTensors(tmp_path / "x").states()
    assert str(caught.value) == f"{path}: {MESSAGE}"


@pytest.mark.parametrize(("size", "micro_batches"), [(2, 1), (3, 1), (2, 2), (2, 4)])
def test_states_are_joined_in_the_order_of_the_batch(size, micro_batches):
    state = torch.arange(7.0)[:, None]
    all_rows = state_rows([3] * (size - 1) + [7 - 3 * (size - 1)], micro_batches)
    assert sorted(row for rows in all_rows for row in rows) == list(range(7))
    joined = join_states([((state[rows],), rows) for rows in all_rows], Path("x"))
    assert torch.equal(joined[0], state)
    assert join_states([(None, []), (None, [])], Path("x")) is None
    with pytest.raises(ModelError) as caught:
        join_states([((state[:2],), [0, 2]), ((state[:2],), [2, 3])], Path("x"))
    assert str(caught.value) == f"x: {MESSAGE}"


def test_a_process_that_fails_is_named_to_the_others(tmp_path):
    failing = group(0, 2)
    failing.gather = lambda value: [value, [None, "d/x: no space left on disk"]]  # type: ignore[method-assign]
    with pytest.raises(ResourceError) as caught:
        together(failing, lambda: 1)
    assert str(caught.value) == "rank 1 (host h1): d/x: no space left on disk"

    def fail() -> None:
        raise ResourceError("mine", "no space left on disk")

    with pytest.raises(ResourceError, match=r"^mine: no space"):
        together(failing, fail)
    with pytest.raises(ResourceError, match=r"^mine: no space"):
        together(Group(), fail)


def test_a_file_of_another_host_that_is_not_here_is_an_error(tmp_path):
    train_state = saving.CheckpointContent(shards.Shard({}, {}, {}), {"step": 1}, 0, 1)
    written = [[{}, {}, 0], [{"model-00002-of-00002.safetensors": {"size": 8, "sha256": ""}}, {}, 0]]
    with pytest.raises(ResourceError) as caught:
        saving._list_shards(tmp_path, written, train_state, {})
    path = tmp_path / "model-00002-of-00002.safetensors"
    assert str(caught.value) == (
        f"{path}: another process has written it, but it is not here; use a directory that all hosts share"
    )
