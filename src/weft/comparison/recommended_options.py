"""Recommended settings in a comparison: every architecture gets its own, with the same data, tokenizer and budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.comparison.plan import Variant, Variants
from weft.runs.recommend import Recommendation, recommend
from weft.training.config import BUDGETS


def with_recommended_options(plan: Variants, values: Mapping[str, Any], *, base: Path) -> Variants:
    """The plan with the recommended options of each variant. Data, tokenizer and budget are those of the run file `values`."""
    shared = recommend(values, base=base)
    if not shared.options:
        return plan
    return plan._replace(variants=[_complete(variant, shared, base) for variant in plan.variants])


def _complete(variant: Variant, shared: Recommendation, base: Path) -> Variant:
    values = {**variant.values, **{table: shared.values[table] for table in ("data", "tokenizer")}}
    train = values.get("train", {})
    if not any(name in train for name in BUDGETS):
        budget = {name: value for name, value in shared.values["train"].items() if name in (*BUDGETS, "batch_tokens")}
        values = {**values, "train": {**budget, **train}}
    completed = recommend(values, base=base, profile=shared.profile)
    return variant._replace(values={**completed.values, "recommend": False})
