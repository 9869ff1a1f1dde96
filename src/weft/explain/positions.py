"""Position encodings of a run: their vectors, the dot products of those, and both as a function of distance.

Sinusoidal and learned encodings are vectors added to the embeddings. Rotary encodings rotate queries and keys, ALiBi and the
relative bias are added to the attention scores, relative encodings are key vectors of distances. All numbers come from the
modules of the run.

Shapes: N positions, D hidden size, H heads, E head dimension, R = E / 2 pairs, K distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.inputs import network, read
from weft.explain.options import ExplainConfig
from weft.explain.stacks import layers_of, named_parts, side_of
from weft.nn.positions import (
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    RelativePositions,
    RotaryEmbedding,
    SinusoidalPositions,
)
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.lines import Axis, Series, lines
from weft.runs.run import AnyRun

DEFAULT_POSITIONS, MAX_POSITIONS = 40, 96  # shown without a text; shown of a long text
MAX_COLUMNS = 64  # dimensions of a vector in a figure
TABLE_DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64)
MAX_SERIES = 8  # heads of ALiBi in the table


class EncodingValues(NamedTuple):
    """The values of a position encoding."""

    kind: str
    rows: list[str]  # positions, distances (relative) or heads (biases)
    columns: list[str]  # dimensions, or distances (biases)
    values: np.ndarray  # (rows, columns)
    quantity: str  # the name of the values
    products: np.ndarray | None  # dot products, (rows, rows)
    distances: list[int]  # K
    by_distance: dict[str, np.ndarray]  # (K,) by name

    def to_json(self) -> dict[str, Any]:
        products = {} if self.products is None else {"products": self.products.round(6).tolist()}
        return {
            "kind": self.kind,
            "rows": self.rows,
            "columns": self.columns,
            "values": self.values.round(6).tolist(),
            **products,
            "distances": self.distances,
            "by_distance": {name: values.round(6).tolist() for name, values in self.by_distance.items()},
        }


def _numbered(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def _mean_by_distance(products: np.ndarray) -> np.ndarray:
    """The mean of p(i) . p(i + k) over i, for k = 0, 1, ..., (N,)."""
    return np.array([np.diagonal(products, distance).mean() for distance in range(len(products))])


def _absolute(kind: str, module: Any, dim: int, count: int) -> EncodingValues:
    """An encoding whose vectors are added to the embeddings."""
    tensor = next(module.parameters(), next(module.buffers(), torch.zeros(())))
    positions = torch.arange(count, device=tensor.device)[None]
    vectors = module.add_to(torch.zeros(1, count, dim, device=tensor.device), positions)[0].double().cpu().numpy()
    products = vectors @ vectors.T
    return EncodingValues(
        kind, _numbered(count), _numbered(dim), vectors, "value of the position vector", products, list(range(count)),
        {"mean p(i) · p(j)": _mean_by_distance(products)},
    )  # fmt: skip


def _sinusoidal(module: Any, count: int) -> EncodingValues:
    return _absolute("sinusoidal", module, module.dim, count)


def _learned(module: Any, count: int) -> EncodingValues:
    return _absolute("learned", module, module.table.embedding_dim, min(count, module.max_positions))


def _rotary(module: Any, count: int) -> EncodingValues:
    """Cosine and sine of the angle of each pair; q . k for q = k, and the bound of Su et al. (2021), section 3.4.3."""
    device, num_pairs = module.frequencies.device, len(module.frequencies)
    positions = torch.arange(count, device=device)[None]
    x = torch.zeros(1, 1, count, 2 * num_pairs, device=device, dtype=torch.float64)
    x[..., :num_pairs] = 1.0  # the vector (1, 0) in each pair: rotated, it is (cos, sin)
    rotated = module.rotate(x, positions)[0, 0].cpu().numpy()  # (N, E): all cosines, then all sines
    products = rotated @ rotated.T / num_pairs
    bound = np.abs(np.cumsum(rotated[:, :num_pairs] + 1j * rotated[:, num_pairs:], axis=1)).mean(1)
    columns = [f"{function}{pair}" for function in ("cos", "sin") for pair in range(num_pairs)]
    by_distance = {"q · k of equal q, k": _mean_by_distance(products), "bound (Su et al.)": bound / bound[0]}
    return EncodingValues(
        "rotary", _numbered(count), columns, rotated, "cosine or sine of the angle", products, list(range(count)), by_distance
    )


def _alibi(module: Any, count: int) -> EncodingValues:
    """The bias of each head by distance."""
    # of the last query, the nearest key first
    return _bias("alibi", module, module.slope.device, len(module.slope), list(range(count)), range(0, -count, -1))


def _relative_bias(module: Any, count: int) -> EncodingValues:
    """The bias of each head by distance; in a bidirectional stack, negative distances are keys to the left."""
    distances = list(range(1 - count if module.bidirectional else 0, count))
    keys = distances if module.bidirectional else range(0, -count, -1)
    return _bias("relative-bias", module, module.table.weight.device, module.table.embedding_dim, distances, keys)


def _bias(
    kind: str, module: Any, device: torch.device, num_heads: int, distances: list[int], keys: Sequence[int]
) -> EncodingValues:
    """The bias of each head for keys at these places relative to the query, (H, K)."""
    place = len(distances)  # of the query: any place to the right of all keys that are asked for
    q = torch.zeros(1, num_heads, 1, 1, device=device, dtype=torch.float64)
    bias = module.attention_bias(q, torch.tensor([[place]], device=device), place + torch.tensor([list(keys)], device=device))
    values = 0.0 + bias[0, :, 0].cpu().numpy()  # 0.0 + removes negative zeros
    heads, columns = [str(head) for head in range(1, num_heads + 1)], [str(distance) for distance in distances]
    by_distance = {f"head {head}": row for head, row in zip(heads, values, strict=True)}
    return EncodingValues(kind, heads, columns, values, "bias of the attention score", None, distances, by_distance)


def _relative(module: Any, count: int) -> EncodingValues:
    """The key vector of each distance; negative distances are keys to the left."""
    max_distance = min(module.max_distance, count - 1)
    center = module.max_distance  # the row of distance 0
    vectors = module.keys.weight.detach().double().cpu().numpy()[center - max_distance : center + max_distance + 1]
    distances = list(range(-max_distance, max_distance + 1))
    return EncodingValues(
        "relative", [f"{distance:+d}" if distance else "0" for distance in distances], _numbered(vectors.shape[1]), vectors,
        "value of the key vector", vectors @ vectors.T, distances,
        {"norm of the key vector": np.linalg.norm(vectors, axis=1)},
    )  # fmt: skip


# a new position encoding is one function and one line here
ENCODINGS: dict[type[nn.Module], Callable[[Any, int], EncodingValues]] = {
    SinusoidalPositions: _sinusoidal,
    LearnedPositions: _learned,
    RotaryEmbedding: _rotary,
    AlibiBias: _alibi,
    RelativeBias: _relative_bias,
    RelativePositions: _relative,
}


class Site(NamedTuple):
    """An encoding, and the stacks or layers that have it with equal values."""

    names: list[str]  # 'encoder', 'layer 2'; '' for the only stack
    encoding: EncodingValues


def _find_encodings(model: nn.Module) -> dict[str, str]:
    """The modules of position encodings by name, each with the name of its layer or stack, as in `Site`."""
    layers = layers_of(model)
    labels = {layer: " ".join(label.split()[:2]) for layer, label in zip(layers, named_parts(model, layers), strict=True)}
    sites = dict[str, str]()
    for name, module in model.named_modules(remove_duplicate=False):  # layers may share one
        if type(module) in ENCODINGS and ".char_encoder." not in name:
            layer = next((label for layer, label in labels.items() if name.startswith(f"{layer}.")), None)
            sites[name] = layer or ("" if side_of(name) == "layer" else side_of(name))
    return sites


@torch.no_grad()
def find_sites(model: nn.Module, count: int, options: ExplainConfig) -> list[Site]:
    """The position encodings of a model; layers with equal values are one site."""
    sites = list[Site]()
    for module_name, site_name in _find_encodings(model).items():
        number = site_name.rpartition(" ")[2]
        if number.isdigit() and options.layer not in (None, int(number)):
            continue
        if options.component is not None and not site_name.startswith(options.component):
            continue
        module = model.get_submodule(module_name)
        encoding = ENCODINGS[type(module)](module, count)
        equal = next((site for site in sites if np.array_equal(site.encoding.values, encoding.values)), None)
        if equal is None:
            sites.append(Site([site_name], encoding))
        else:
            equal.names.append(site_name)
    return sites


def why_no_positions(run: AnyRun) -> str | None:
    """The reason why a run has no position encodings; None if it has."""
    model = network(run)
    if model is not None and _find_encodings(model):
        return None
    return f"architecture {run.config.arch!r} has no position encodings"


# ---- figures and text


def _title(site: Site) -> str:
    """'rotary positions, layer 1 to layer 4'."""
    title = f"{site.encoding.kind} positions"
    names = [name for name in site.names if name]
    if not names:
        return title
    return f"{title}, {names[0]} to {names[-1]}" if len(names) > 2 else f"{title}, {' and '.join(names)}"


def _select_columns(encoding: EncodingValues) -> list[int]:
    """All columns, or MAX_COLUMNS at equal distances."""
    count = len(encoding.columns)
    return list(range(count)) if count <= MAX_COLUMNS else [i * count // MAX_COLUMNS for i in range(MAX_COLUMNS)]


def _figures(site: Site) -> Iterator[Figure]:
    encoding, selected = site.encoding, _select_columns(site.encoding)
    row_axis = {"relative": "distance", "alibi": "head", "relative-bias": "head"}.get(encoding.kind, "position")
    column_axis = "distance" if row_axis == "head" else "dimension"
    title, rows = _title(site), encoding.rows
    num_columns = len(encoding.columns)
    subset = "" if len(selected) == num_columns else f", {len(selected)} of {num_columns} dimensions"
    svg = diverging_heatmap(
        encoding.values[:, selected],
        rows=rows,
        columns=[encoding.columns[i] for i in selected],
        name=encoding.quantity,
        title=title + subset,
        axes=(row_axis, column_axis),
    )
    yield Figure(f"Values: {title}{subset}", svg)
    if encoding.products is not None:
        name = f"dot product of two {row_axis}s"
        svg = diverging_heatmap(
            encoding.products, rows=rows, columns=rows, name=name, title=f"{title}: dot products", axes=(row_axis, row_axis)
        )
        yield Figure(f"Dot products: {title}", svg)
    series = [Series(name, encoding.distances, values.tolist()) for name, values in encoding.by_distance.items()]
    if row_axis == "head":
        y_axis = Axis(encoding.quantity)
    else:
        y_axis = Axis(series[0].name if len(series) == 1 else "relative to distance 0")
    svg = lines(series, x_axis=Axis("distance"), y_axis=y_axis, title=f"{title}: by distance")
    yield Figure(f"By distance: {title}", svg)


def _tables(sites: Sequence[Site]) -> Iterator[str]:
    """The values of each site by distance."""
    for site in sites:
        encoding = site.encoding
        series = dict(list(encoding.by_distance.items())[:MAX_SERIES])
        indices = [encoding.distances.index(distance) for distance in TABLE_DISTANCES if distance in encoding.distances]
        rows = [[f"{encoding.distances[i]}", *(f"{values[i]:.3f}" for values in series.values())] for i in indices]
        yield _title(site)
        yield from align_columns([["distance", *series], *rows], left=())


def positions(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The position encodings of a run, for as many positions as the text has tokens. Default: 40."""
    model = network(run)
    count = max(2, min(MAX_POSITIONS, len(read(run, text, options).sides[0].tokens))) if text else DEFAULT_POSITIONS
    if options.component not in (None, "encoder", "decoder"):
        raise UsageError("component", f"position encodings are in the encoder or decoder, got {options.component!r}")
    sites = [] if model is None else find_sites(model, count, options)
    if not sites:
        raise UsageError("layer", "no position encoding in the selected layers", "remove `layer` and `component`")
    data = {"positions": count, "sites": [{"places": site.names, **site.encoding.to_json()} for site in sites]}
    figures = [figure for site in sites for figure in _figures(site)]
    return Explanation("positions", f"Positions of {run.config.arch}", data, figures, list(_tables(sites)), guides.POSITIONS)
