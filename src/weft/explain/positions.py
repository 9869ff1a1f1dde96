"""What a run knows of places: the vectors of its positions, their dot products, and how both change with distance.

Sinusoidal and learned positions are vectors that are added to the embeddings; rotary ones turn queries and keys, ALiBi adds to
the scores, relative ones are key vectors of distances. All numbers come from the run's own modules.

Shapes: N positions, D width, H heads, E size of a head, R = E / 2 pairs, K distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from weft.nn.positions import AlibiBias, LearnedPositions, RelativePositions, RotaryEmbedding, SinusoidalPositions
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.lines import Axis, Series, lines
from weft.runs.run import AnyRun

COUNT, MOST = 40, 96  # positions that are shown without a text, and of a long one
WIDE = 64  # numbers of a vector that are drawn
DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64)  # that a terminal is told of
HEADS = 8  # of ALiBi, in a terminal


class PositionValues(NamedTuple):
    """What there is to see of one kind of positions."""

    kind: str
    rows: list[str]  # what each vector belongs to: a position, a distance, a head
    columns: list[str]  # what each of its numbers is
    values: np.ndarray  # (rows, columns)
    value: str  # what a number of it is
    products: np.ndarray | None  # (rows, rows)
    distances: list[int]
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
            "by_distance": {name: numbers.round(6).tolist() for name, numbers in self.by_distance.items()},
        }


def _numbered(count: int) -> list[str]:
    return [str(at) for at in range(count)]


def _by_distance(products: np.ndarray) -> np.ndarray:
    """The mean of p(i) . p(i + k) over i, for k = 0, 1, ..., (N,)."""
    return np.array([np.diagonal(products, offset).mean() for offset in range(len(products))])


def _added(kind: str, part: Any, width: int, count: int) -> PositionValues:
    """Vectors that are added to what is read."""
    like = next(part.parameters(), next(part.buffers(), torch.zeros(())))
    at = torch.arange(count, device=like.device)[None]
    vectors = part.add_to(torch.zeros(1, count, width, device=like.device), at)[0].double().cpu().numpy()
    products = vectors @ vectors.T
    names = _numbered(width)
    return PositionValues(
        kind, _numbered(count), names, vectors, "number of a position's vector", products, list(range(count)),
        {"mean p(i) · p(j)": _by_distance(products)},
    )  # fmt: skip


def _sinusoidal(part: Any, count: int) -> PositionValues:
    return _added("sinusoidal", part, part.dim, count)


def _learned(part: Any, count: int) -> PositionValues:
    return _added("learned", part, part.table.embedding_dim, min(count, part.max_positions))


def _rotary(part: Any, count: int) -> PositionValues:
    """cos and sin of each pair's angle; what is left of q . k of equal q and k, and the bound of Su et al. (2021), 3.4.3."""
    pairs, at = len(part.frequencies), torch.arange(count, device=part.frequencies.device)[None]
    one = torch.zeros(1, 1, count, 2 * pairs, device=part.frequencies.device, dtype=torch.float64)
    one[..., :pairs] = 1.0
    turned = part.rotate(one, at)[0, 0].cpu().numpy()  # the first numbers of all pairs: cosines, then sines
    products = turned @ turned.T / pairs
    sums = np.abs(np.cumsum(turned[:, :pairs] + 1j * turned[:, pairs:], axis=1)).mean(1)
    names = [f"{name}{at}" for name in ("cos", "sin") for at in range(pairs)]
    by_distance = {"q · k of equal q, k": _by_distance(products), "bound (Su et al.)": sums / sums[0]}
    return PositionValues(
        "rotary", _numbered(count), names, turned, "cos or sin of an angle", products, list(range(count)), by_distance
    )


def _alibi(part: Any, count: int) -> PositionValues:
    """What is added to the scores of each head, by distance."""
    at = torch.arange(count, device=part.slope.device)
    q = torch.zeros(1, len(part.slope), count, 1, device=part.slope.device, dtype=torch.float64)
    bias = 0.0 + part.attention_bias(q, at[None], at[None])[0].cpu().numpy()  # (H, N, N), without negative zeros
    heads = [str(head) for head in range(1, len(bias) + 1)]
    by_distance = {f"head {head}": numbers for head, numbers in zip(heads, bias[:, -1, ::-1], strict=True)}
    numbered = _numbered(count)
    return PositionValues(
        "alibi", heads, numbered, bias[:, -1, ::-1], "added to a score", None, list(range(count)), by_distance
    )


def _relative(part: Any, count: int) -> PositionValues:
    """The key vector of each distance, to what is before (-) and after."""
    vectors, reach = part.keys.weight.detach().double().cpu().numpy(), min(part.max_distance, count - 1)
    middle = vectors[part.max_distance - reach : part.max_distance + reach + 1]
    distances = list(range(-reach, reach + 1))
    return PositionValues(
        "relative", [f"{distance:+d}" if distance else "0" for distance in distances], _numbered(middle.shape[1]), middle,
        "number of a distance's key vector", middle @ middle.T, distances,
        {"norm of the key vector": np.linalg.norm(middle, axis=1)},
    )  # fmt: skip


# a new kind of positions is one function and one line here
KINDS: dict[type[nn.Module], Callable[[Any, int], PositionValues]] = {
    SinusoidalPositions: _sinusoidal,
    LearnedPositions: _learned,
    RotaryEmbedding: _rotary,
    AlibiBias: _alibi,
    RelativePositions: _relative,
}


class Site(NamedTuple):
    places: list[str]  # the layers, or the stack, that know positions so
    shown: PositionValues


def _names(model: nn.Module) -> dict[str, str]:
    """The parts that know positions, by name, each with what people call its place: 'encoder', 'layer 2'; '' for the text."""
    layers = layers_of(model)
    called = {layer: " ".join(label.split()[:2]) for layer, label in zip(layers, named_parts(model, layers), strict=True)}
    found = dict[str, str]()
    for name, part in model.named_modules():
        if type(part) in KINDS and ".char_encoder." not in name:
            layer = next((label for layer, label in called.items() if name.startswith(f"{layer}.")), None)
            found[name] = layer or ("" if side_of(name) == "layer" else side_of(name))
    return found


@torch.no_grad()
def sites(model: nn.Module, count: int, options: ExplainConfig) -> list[Site]:
    """All kinds of positions of a model; layers that share their numbers are one site."""
    found = list[Site]()
    for name, place in _names(model).items():
        number = place.rpartition(" ")[2]
        if number.isdigit() and options.layer not in (None, int(number)):
            continue
        if options.component is not None and not place.startswith(options.component):
            continue
        part = model.get_submodule(name)
        shown = KINDS[type(part)](part, count)
        same = next((site for site in found if np.array_equal(site.shown.values, shown.values)), None)
        if same is None:
            found.append(Site([place], shown))
        else:
            same.places.append(place)
    return found


def why_no_positions(run: AnyRun) -> str | None:
    """Why a run knows no positions, if it knows none."""
    model = network(run)
    return None if model is not None and _names(model) else f"architecture {run.config.arch!r} has no position encodings"


# ---- pictures


def _place(site: Site) -> str:
    """', layer 1 to layer 4'; nothing where there is but one text."""
    known = [place for place in site.places if place]
    if not known:
        return ""
    return f", {known[0]} to {known[-1]}" if len(known) > 2 else f", {' and '.join(known)}"


def _some(shown: PositionValues) -> list[int]:
    """The numbers of a vector that are drawn: all, or as many as there is room for, evenly."""
    count = len(shown.columns)
    return list(range(count)) if count <= WIDE else [at * count // WIDE for at in range(WIDE)]


def _pictures(site: Site) -> Iterator[Figure]:
    shown, chosen = site.shown, _some(site.shown)
    what = {"relative": "distance", "alibi": "head"}.get(shown.kind, "position")
    across = "distance" if shown.kind == "alibi" else "number of the vector"
    some = "" if len(chosen) == len(shown.columns) else f", {len(chosen)} of {len(shown.columns)} numbers"
    title = f"{shown.kind} positions{_place(site)}"
    columns = [shown.columns[at] for at in chosen]
    drawn = diverging_heatmap(
        shown.values[:, chosen], rows=shown.rows, columns=columns, name=shown.value, title=title + some, axes=(what, across)
    )
    yield Figure(f"Values: {title}{some}", drawn)
    if shown.products is not None:
        name = f"dot product of two {what}s"
        drawn = diverging_heatmap(
            shown.products, rows=shown.rows, columns=shown.rows, name=name, title=f"{title}: dot products", axes=(what, what)
        )
        yield Figure(f"Dot products: {title}", drawn)
    series = [Series(name, shown.distances, numbers.tolist()) for name, numbers in shown.by_distance.items()]
    up = Axis(next(iter(shown.by_distance)) if len(series) == 1 else "share of distance 0")
    if shown.kind == "alibi":
        up = Axis("added to a score")
    drawn = lines(series, across=Axis("distance"), up=up, title=f"{title}: by distance")
    yield Figure(f"By distance: {title}", drawn)


def _lines(found: Sequence[Site]) -> Iterator[str]:
    """By distance, for a terminal."""
    for site in found:
        shown = site.shown
        series: Mapping[str, np.ndarray] = dict(list(shown.by_distance.items())[:HEADS])
        at = [shown.distances.index(distance) for distance in DISTANCES if distance in shown.distances]
        rows = [[f"{shown.distances[place]}", *(f"{numbers[place]:.3f}" for numbers in series.values())] for place in at]
        yield f"{shown.kind} positions{_place(site)}"
        yield from align_columns([["distance", *series], *rows], left=())


def positions(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The positions of a run: as many as a text has tokens, or 40."""
    model = network(run)
    count = COUNT if not text else max(2, min(MOST, len(read(run, text, options).sides[0].tokens)))
    if options.component not in (None, "encoder", "decoder"):
        raise UsageError("component", f"position encodings are in the encoder or decoder, got {options.component!r}")
    found = [] if model is None else sites(model, count, options)
    if not found:
        raise UsageError("layer", "no position encoding in the selected layers", "remove `layer` and `component`")
    data = {"positions": count, "sites": [{"places": site.places, **site.shown.to_json()} for site in found]}
    pictures = [picture for site in found for picture in _pictures(site)]
    return Explanation("positions", f"Positions of {run.config.arch}", data, pictures, list(_lines(found)), guides.POSITIONS)
