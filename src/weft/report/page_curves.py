"""Curves of further validation metrics in a report, such as the KL divergence and the length of the responses of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.metrics.labels import label_of
from weft.plots.lines import Axis, Series, lines


def other_curves(document: Mapping[str, Any]) -> str:
    """A chart of each further metric that the runs logged, one line per run."""
    curves = document.get("curves") or []
    names = list(dict.fromkeys(name for curve in curves for name in curve.get("others") or {}))
    charts = []
    for name in names:
        series = [
            Series(
                f"{curve['name']} ({curve['seed']})" if curve.get("seed") else curve["name"],
                [point["step"] for point in points],
                [point["value"] for point in points],
                group=curve["name"],
            )
            for curve in curves
            if (points := [point for point in (curve.get("others") or {}).get(name) or [] if point.get("value") is not None])
        ]
        if series:
            label = label_of(name)
            text = f"{label.text} ({label.unit})" if label.unit else label.text
            charts.append(lines(series, x_axis=Axis("step"), y_axis=Axis(text), title=f"validation {label.text}"))
    return "".join(charts)
