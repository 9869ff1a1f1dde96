"""`weft info`: what a run is and how far it has come; without a run, what this machine has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import ModelCommand
from weft.cli.output import format_duration, score_name, write, write_json
from weft.text.table_layout import align, columns

if TYPE_CHECKING:
    from torch import nn

    from weft.models.model_part import Part
    from weft.runs.run import AnyRun

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia")  # of GPUs: of Linux, of WSL, of ROCm
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic", "typer", "rich")


def _gpu() -> str:
    """The GPU that torch sees; torch, which takes seconds to import, is asked only where a driver is."""
    if not any(map(os.path.exists, DRIVERS)):
        return "none"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def about_machine() -> dict[str, Any]:
    """Versions and hardware, for bug reports."""
    import platform
    from importlib.metadata import version

    from weft import __version__
    from weft.cli.threads import cpus, threads
    from weft.resources import free_memory

    return {
        "weft": __version__,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "system": platform.platform(),
        "cpus": cpus(),
        "threads": threads(),
        "free_memory": free_memory(),
        "gpu": _gpu(),
    }


def _on_disk(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return sum(part.stat().st_size for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file())


def _network_parts(model: nn.Module) -> list[Part]:
    from weft.models.parts import count_parameters

    return count_parameters(model)


def _counted_parts(counts: Mapping[str, int]) -> list[Part]:
    from weft.models.model_part import Part

    return [Part("", name, count) for name, count in counts.items()]


def _parts(run: AnyRun) -> list[dict[str, Any]]:
    """The parameters of a run's model by part, with their shares."""
    found = _network_parts(run.network) if run.network is not None else _counted_parts(run.model.parts())
    total = max(1, sum(part.num_parameters for part in found))
    return [
        {
            **({"side": part.side} if part.side else {}),
            "part": part.name,
            "parameters": part.num_parameters,
            "share": part.num_parameters / total,
            **({"tied": list(part.tied)} if part.tied else {}),
        }
        for part in found
    ]


def _opening(run: AnyRun) -> dict[str, list[str]]:
    """The tokens that a text by itself comes after, of runs that write texts."""
    if run.task.decode is None or run.task.decode.generate is None:
        return {}
    return {"opening": [run.vocabulary.token_text(number) for number in run.task.decode.prompt(run, "")]}


def about_run(run: AnyRun) -> dict[str, Any]:
    """What a run folder holds."""
    from weft.config import BUDGETS
    from weft.runs.run_dir import read_environment
    from weft.runs.status import read_run_status

    path = run.directory.path
    demo, config = read_run_status(path), run.config.to_dict()
    budget = {name: config["train"][name] for name in BUDGETS if name in config["train"]}
    parts = [part for part in sorted(path.iterdir()) if not part.name.startswith(".")]
    return {
        "path": str(path),
        "task": run.config.task,
        "arch": run.config.arch,
        "parameters": run.num_parameters if run.directory.weights.exists() else None,
        "parts": _parts(run) if run.directory.weights.exists() else None,
        "tokenizers": {
            name: {"type": one.kind, "vocab_size": one.size, "hash": one.hash} for name, one in run.vocabulary.by_name().items()
        },
        **_opening(run),
        "budget": {} if demo.is_fitted or demo.imported else budget,
        "progress": demo.to_json(),
        "bytes": {part.name: _on_disk(part) for part in parts},
        "trained_with": read_environment(path),
        "settings": config,
    }


def _progress(found: Mapping[str, Any]) -> str:
    progress = found["progress"]
    if progress["done"] and not progress["steps"] and not progress["counted"]:
        return "imported: trained elsewhere"
    budget = "".join(f" of {value:,} {name}" for name, value in found["budget"].items())
    steps = f"{progress['steps']:,} {'step' if progress['steps'] == 1 else 'steps'}"
    if progress["counted"]:
        read = "examples" if "examples" in progress else "tokens"
        steps = f"{progress[read]:,} {read}, counted"
    if progress["training_seconds"] is not None:
        steps += f", {progress['tokens']:,} tokens, {format_duration(progress['training_seconds'])}"
    return f"{'finished' if progress['done'] else 'not finished'}: {steps}" + budget


def _best(progress: Mapping[str, Any]) -> str:
    best = progress["best_valid"]
    if best is None:
        return "none"
    at = "" if progress["counted"] else f" at step {best['step']:,}"
    return f"{score_name(best['name'])} {best['value']:.4f}{at}"


def _parts_table(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line a part: its name, its parameters, their share, and what else these weights are."""
    rows = [
        [
            f"{part.get('side', '')} {part['part']}".lstrip(),
            f"{part['parameters']:,}",
            f"{part['share']:.1%}",
            f"also the {' and the '.join(part['tied'])}" if "tied" in part else "",
        ]
        for part in parts
    ]
    return [line.rstrip() for line in align(rows, left=(0, 3))]


def _gradients(found: Mapping[str, Any]) -> str:
    """'norm 0.8123 on average, 3.1 at most; clipped 12 of 150 steps to 1'."""
    seen, clip = found["progress"]["gradients"], found["settings"]["train"]["max_grad_norm"]
    limit = "not clipped" if clip == "none" else f"clipped {seen['clipped']:,} of {seen['steps']:,} steps to {clip:g}"
    return f"norm {seen['mean']:.3g} on average, {seen['largest']:.3g} at most; {limit}"


def _files(value: Any) -> str:
    if value is False:
        return "none: the model was trained elsewhere"
    if isinstance(value, float):
        return f"{value:.1%} of train"
    return ", ".join(value) if isinstance(value, list) else str(value)


def describe(found: Mapping[str, Any], unit: str) -> str:
    """The same for people; the size of the model is counted by `unit`."""
    from weft.resources import size
    from weft.text.reading import quote

    data, disk = found["settings"]["data"], found["bytes"]
    missing = "its weights are missing" if found["progress"]["done"] else "not trained yet"
    counted = missing if found["parameters"] is None else f"{found['parameters']:,} {unit}"
    large = [f"{name} {size(count)}" for name, count in disk.items() if count >= 100_000]
    rows = [
        ["run", found["path"]],
        ["model", f"{found['arch']} ({found['task']}), {counted}"],
        *[["" if at else "parts", line] for at, line in enumerate(_parts_table(found["parts"] or []))],
        *[
            [name, f"{one['type']}, {one['vocab_size']:,} tokens, {one['hash'][:8]}"]
            for name, one in found["tokenizers"].items()
        ],
        *[[f"{name} data", _files(data[name])] for name in ("train", "valid", "test") if name in data],
        *([["read as", data["read"]]] if "read" in data else []),
        *([["texts begin", f"after {quote(''.join(found['opening']))}"]] if "opening" in found else []),
        ["progress", _progress(found)],
        *([["gradients", _gradients(found)]] if found["progress"]["gradients"] else []),
        ["best valid", _best(found["progress"])],
        ["on disk", ", ".join([f"{size(sum(disk.values()))} in all", *large])],
        ["trained with", ", ".join(f"{name} {value}" for name, value in found["trained_with"].items())],
    ]
    return columns(rows, left=2)


@dataclass(kw_only=True)
class Info(ModelCommand):
    """Show what a run is and how far it has come; without a run, versions and hardware for a bug report."""

    run_dir: Annotated[Path | None, typer.Argument(metavar="RUN", help="The run folder.")] = None

    def run(self) -> int:
        if self.run_dir is None:
            self._print_machine(about_machine())
            return 0
        from weft.runs.load import load

        run = load(self.run_dir)
        found = about_run(run)
        if self.json:
            write_json(found)
        else:
            write(describe(found, run.config.preset.unit))
        return 0

    def _print_machine(self, found: dict[str, Any]) -> None:
        from weft.resources import size

        if self.json:
            write_json(found)
            return
        flat = {**found, "libraries": " ".join(f"{name} {number}" for name, number in found["libraries"].items())}
        flat["free memory"] = size(flat.pop("free_memory"))
        write(columns([[name, str(value)] for name, value in flat.items()], left=2))
