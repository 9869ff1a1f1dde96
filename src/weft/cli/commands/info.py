"""`weft info`: configuration and progress of a run; without a run, versions and hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import ModelCommand
from weft.cli.output import format_duration, format_percent, pluralize, write, write_json
from weft.metrics.labels import format_score, label_of
from weft.text.table_layout import align, columns

if TYPE_CHECKING:
    from torch import nn

    from weft.models.model_part import Part
    from weft.runs.run import AnyRun

LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic", "typer", "rich")
LARGE_BYTES = 100_000  # files of at least this size are listed


def machine_info() -> dict[str, Any]:
    """Versions and hardware, for bug reports."""
    import platform
    from importlib.metadata import version

    from weft import __version__
    from weft.cli.threads import cpus, threads
    from weft.resources import free_memory
    from weft.runs.machine import gpu

    return {
        "weft": __version__,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "system": platform.platform(),
        "cpus": cpus(),
        "threads": threads(),
        "free_memory": free_memory(),
        "gpu": gpu(),
    }


def _num_bytes(path: Path) -> int:
    """Bytes of a file, or of all files in a directory."""
    return sum(part.stat().st_size for part in (path.rglob("*") if path.is_dir() else [path]) if part.is_file())


def _network_parts(model: nn.Module) -> list[Part]:
    from weft.models.parts import count_parameters

    return count_parameters(model)


def _fitted_parts(counts: Mapping[str, int]) -> list[Part]:
    from weft.models.model_part import Part

    return [Part("", name, count) for name, count in counts.items()]


def _parts(run: AnyRun) -> list[dict[str, Any]]:
    """The parameters of a run's model by part, with their fractions."""
    parts = _network_parts(run.network) if run.network is not None else _fitted_parts(run.model.parts())
    total = max(1, sum(part.num_parameters for part in parts))
    return [
        {
            **({"side": part.side} if part.side else {}),
            "part": part.name,
            "parameters": part.num_parameters,
            "share": part.num_parameters / total,
            **({"tied": list(part.tied)} if part.tied else {}),
        }
        for part in parts
    ]


def _bos_tokens(run: AnyRun) -> dict[str, list[str]]:
    """The tokens before a text without a prompt, for runs that generate text."""
    if run.spec.decode is None or run.spec.decode.generate is None:
        return {}
    return {"bos_tokens": [run.vocabulary.token_text(token_id) for token_id in run.spec.decode.prompt_ids(run, "")]}


def _active_parameters(run: AnyRun) -> dict[str, int]:
    """The number of parameters that one token uses, for a mixture of experts."""
    from weft.comparison.costs import active_parameters

    active = active_parameters(run.network) if run.directory.weights.exists() else None
    return {} if active is None else {"active_parameters": active}


def run_info(run: AnyRun) -> dict[str, Any]:
    """Everything about a run directory."""
    from weft.config import BUDGETS
    from weft.interop.formats import all_problems
    from weft.runs.run_dir import read_environment
    from weft.runs.status import read_run_status

    path = run.directory.path
    status, config = read_run_status(path), run.config.to_dict()
    budget = {name: config["train"][name] for name in BUDGETS if name in config["train"]}
    parts = [part for part in sorted(path.iterdir()) if not part.name.startswith(".")]
    return {
        "path": str(path),
        "task": run.config.task,
        "arch": run.config.arch,
        "parameters": run.num_parameters if run.directory.weights.exists() else None,
        **_active_parameters(run),
        "parts": _parts(run) if run.directory.weights.exists() else None,
        "tokenizers": {
            name: {"type": tokenizer.type, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}
            for name, tokenizer in run.vocabulary.by_name().items()
        },
        **_bos_tokens(run),
        "budget": {} if status.is_fitted or status.imported else budget,
        "progress": status.to_json(),
        "bytes": {part.name: _num_bytes(part) for part in parts},
        "trained_with": read_environment(path),
        "export": all_problems(run.config),
        "config": config,
    }


def _training(info: Mapping[str, Any]) -> str:
    """'150 of 150 steps, 153,088 tokens, 9m29s'."""
    progress = info["progress"]
    if progress["done"] and not progress["steps"] and not progress["fitted"]:
        return "imported, trained elsewhere"
    if progress["fitted"]:
        unit = "examples" if "examples" in progress else "tokens"
        return f"fitted to {progress[unit]:,} {unit}"
    budget = info["budget"].get("max_steps")
    last = progress["steps"] if budget is None else budget
    steps = f"{progress['steps']:,}{'' if budget is None else f' of {budget:,}'} step{'' if last == 1 else 's'}"
    other = [f"budget {value:,g} {name.removeprefix('max_')}" for name, value in info["budget"].items() if name != "max_steps"]
    if progress["train_seconds"] is None:
        return ", ".join([steps, *other])
    return ", ".join([steps, f"{progress['tokens']:,} tokens", *other, format_duration(progress["train_seconds"])])


def _best(progress: Mapping[str, Any]) -> str:
    best = progress["best"]
    if best is None:
        return "-"
    label = label_of(best["name"])
    step = "" if progress["fitted"] else f" at step {best['step']:,}"
    return f"valid {label.text} {format_score(best['value'], label.style)}{step}"


def _parts_table(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per part: name, number of parameters, percentage, and tied weights."""
    rows = [
        [
            f"{part.get('side', '')} {part['part']}".lstrip(),
            f"{part['parameters']:,}",
            f"{part['share']:.1%}",
            f"tied to the {' and the '.join(part['tied'])}" if "tied" in part else "",
        ]
        for part in parts
    ]
    return [line.rstrip() for line in align(rows, left=(0, 3))]


def _gradients(info: Mapping[str, Any]) -> str:
    """'mean norm 0.812, largest 3.1; clipped to 1 in 12 of 150 steps'."""
    summary, limit = info["progress"]["gradients"], info["config"]["train"]["max_grad_norm"]
    is_clipped = isinstance(limit, int | float) and limit > 0
    clipped = f"clipped to {limit:g} in {summary['clipped']:,} of {summary['steps']:,} steps" if is_clipped else "not clipped"
    return f"mean norm {summary['mean']:.3g}, largest {summary['max']:.3g}; {clipped}"


def _files(value: Any) -> str:
    if value is False:
        return "none, trained elsewhere"
    if isinstance(value, float):
        return format_percent(value)
    return ", ".join(value) if isinstance(value, list) else str(value)


def _data(data: Mapping[str, Any]) -> str:
    """'train /srv/train.txt (90%), valid 5%, test 5%, read as windows of 256 tokens'."""
    splits = {name: data[name] for name in ("train", "valid", "test") if data.get(name) is not None}
    fractions = sum(value for value in splits.values() if isinstance(value, float))
    texts = [f"{name} {_files(value)}" for name, value in splits.items()]
    if fractions and texts:
        texts[0] += f" ({format_percent(round(1 - fractions, 6))})"
    if "read_as" in data:
        size = f" of {data['context_length']:,} tokens" if "context_length" in data and data["read_as"] != "lines" else ""
        texts.append(f"read as {data['read_as']}{size}")
    return ", ".join(texts)


def _versions(environment: Mapping[str, Any]) -> str:
    """'weft 0.1.0, Python 3.11.7, torch 2.13.0+cpu, Linux x86_64, 1 thread'."""
    forms = {"python": "Python {}", "system": "{}", "threads": "{} threads", "gpu": "{}"}
    values = {name: value for name, value in environment.items() if (name, value) != ("gpu", "none")}
    texts = [forms.get(name, f"{name} {{}}").format(value) for name, value in values.items()]
    return ", ".join("1 thread" if text == "1 threads" else text for text in texts) or "-"


def describe(info: Mapping[str, Any], unit: str) -> str:
    """The information as text; `unit` is the unit of the model's size, such as parameters."""
    from weft.resources import format_bytes
    from weft.text.reading import quote

    disk, is_done = info["bytes"], info["progress"]["done"]
    missing = "weights are missing" if is_done else "not trained yet"
    count = missing if info["parameters"] is None else f"{info['parameters']:,} {unit}"
    count += f", {info['active_parameters']:,} active" if "active_parameters" in info else ""
    large = [f"{name} {format_bytes(number)}" for name, number in disk.items() if number >= LARGE_BYTES]
    tokenizers = info["tokenizers"]
    rows = [
        ["Run", f"{info['path']} ({'finished' if is_done else 'not finished'})"],
        ["Task", info["task"]],
        ["Model", f"{info['arch']}, {count}"],
        *[["", f"  {line}"] for line in _parts_table(info["parts"] or [])],
        *[
            [
                "" if index else "Tokenizer",
                f"{f'{name.split()[0]}: ' if len(tokenizers) > 1 else ''}{tokenizer['type']}, "
                f"{tokenizer['vocab_size']:,} tokens ({tokenizer['hash'][:8]})",
            ]
            for index, (name, tokenizer) in enumerate(tokenizers.items())
        ],
        ["Data", _data(info["config"]["data"])],
        *([["Prompt", f"texts are generated after {quote(''.join(info['bos_tokens']))}"]] if "bos_tokens" in info else []),
        ["Training", _training(info)],
        *(
            [["Teachers", ", ".join(info["config"]["train"]["distill_from"])]]
            if "distill_from" in info["config"]["train"]
            else []
        ),
        *([["Gradients", _gradients(info)]] if info["progress"]["gradients"] else []),
        ["Best", _best(info["progress"])],
        ["Size", format_bytes(sum(disk.values())) + (f" ({', '.join(large)})" if large else "")],
        ["Versions", _versions(info["trained_with"])],
        ["Export", ", ".join(name for name, problems in info["export"].items() if not problems) or "no format"],
    ]
    return columns(rows, left=2)


@dataclass(kw_only=True)
class Info(ModelCommand):
    """Show a run's configuration and progress, or the installed versions.

    Without a run: the versions and hardware that a bug report needs.
    """

    run_dir: Annotated[Path | None, typer.Argument(metavar="RUN", show_default=False, help="Run directory.")] = None

    def run(self) -> int:
        if self.run_dir is None:
            self._write_machine(machine_info())
            return 0
        from weft.runs.load import load

        run = load(self.run_dir)
        info = run_info(run)
        if self.json:
            write_json(info)
        else:
            write(describe(info, run.config.preset.unit))
        return 0

    def _write_machine(self, info: dict[str, Any]) -> None:
        from weft.resources import format_bytes

        if self.json:
            write_json(info)
            return
        versions = ", ".join([f"Python {info['python']}", *(f"{name} {number}" for name, number in info["libraries"].items())])
        gpu = "no GPU" if info["gpu"] == "none" else info["gpu"]
        threads = "" if info["threads"] == info["cpus"] else f", {pluralize(info['threads'], 'thread')}"
        memory = f"{format_bytes(info['free_memory'])} memory free"
        cpus = pluralize(info["cpus"], "CPU")
        write(f"weft {info['weft']}\n{versions}\n{info['system']}, {cpus}{threads}, {memory}, {gpu}\n")
