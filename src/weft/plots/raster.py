"""A drawing as a PNG, for slides and for programs that show no SVG: what a browser would show, on light paper."""

from __future__ import annotations

import re

from weft.errors import ResourceError, UsageError

SHARPEST, FAINTEST = 2.0, 0.5  # pixels a unit of the drawing: letters for a slide, and letters that can just be read
MOST = 40_000_000  # pixels of a picture: programs that show pictures open no more
SIZE = re.compile(r'<svg\b[^>]*?\swidth="([\d.]+)" height="([\d.]+)"')
# A browser knows what `sans-serif` is on its machine. Here the first that is installed is taken, and letters that it does not
# have come from any font that has them.
FAMILIES = {
    "ui-monospace,monospace": "'DejaVu Sans Mono','Noto Sans Mono','Liberation Mono',Menlo,Consolas,'Courier New',monospace",
    "system-ui,sans-serif": "'DejaVu Sans','Noto Sans','Liberation Sans',Arial,Helvetica,'Segoe UI',Roboto,sans-serif",
}
BLANK = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    "<style>text{font:12px system-ui,sans-serif}</style><text y='15'></text></svg>"
)


def _named(svg: str) -> str:
    """The drawing with the names of fonts in place of what stands for them."""
    for generic, families in FAMILIES.items():
        svg = svg.replace(generic, families)
    return svg


def check_raster(option: str) -> None:
    """Refuse a PNG where none can be made, before any work is done."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise ResourceError(option, '.png needs the package resvg-py: pip install "weft[report]", or write .svg') from None
    blank, word = (svg_to_bytes(svg_string=_named(one)) for one in (BLANK, BLANK.replace("></text>", ">a</text>")))
    if blank == word:
        raise ResourceError(option, ".png needs a font, and none is installed: install DejaVu Sans, or write .svg")


def raster(svg: str) -> bytes:
    """The drawing as a PNG, twice as large, or as large as programs can show."""
    from resvg_py import svg_to_bytes

    found = SIZE.search(svg)
    if found is None:
        raise UsageError("raster", "a drawing has its width and height, in this order, in its first tag")
    wide, high = float(found[1]), float(found[2])
    zoom = min(SHARPEST, (MOST / (wide * high)) ** 0.5)
    if zoom < FAINTEST:
        raise UsageError(".png", f"a picture of {wide:,.0f} x {high:,.0f} would be too small to read", "write .svg or .html")
    return bytes(svg_to_bytes(svg_string=_named(svg), zoom=zoom))
