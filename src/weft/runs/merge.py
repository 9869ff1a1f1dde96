"""`weft.merge`: a run whose LoRA adapters are part of its weights."""

from __future__ import annotations

from pathlib import Path

from weft.errors import UsageError
from weft.nn.lora import adapter_names, merge_adapters
from weft.runs.derived_run import check_output_dir, write_derived_run
from weft.runs.finished import remove_on_failure
from weft.runs.load import load
from weft.runs.run import AnyRun


def merge(run_dir: str | Path, output_dir: str | Path) -> AnyRun:
    """Merge the LoRA adapters of a run into its weights. The new run computes the same function, as fast as without adapters.

    Args:
        run_dir: A run that was trained with `model.lora_rank`.
        output_dir: The new run directory.

    Returns:
        The new run.

    Raises:
        ModelError: The run is missing or corrupted.
        UsageError: The run has no adapters, or the directory contains a run.

    Example:
        >>> weft.merge("runs/lora", "runs/merged").generate("Name a river.").text
    """
    run, out = load(run_dir, device="cpu"), Path(output_dir)
    tensors = run.directory.read_weights(run.vocabulary.hash) if run.config.preset.estimator.by_steps else {}
    if not adapter_names(tensors):
        raise UsageError(run_dir, "has no LoRA adapters", "use it as it is")
    values = run.config.to_dict()
    with remove_on_failure(out):
        check_output_dir(out)
        write_derived_run(run, out, {**values, "model": {**values["model"], "lora_rank": 0}}, merge_adapters(tensors), {})
    return load(out)
