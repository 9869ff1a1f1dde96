"""SVG drawings as PNG, for slides and programs without SVG support; they look as in a browser with the light color scheme."""

from __future__ import annotations

import re

from weft.errors import ResourceError, UsageError

MAX_ZOOM, MIN_ZOOM = 2.0, 0.5  # pixels per unit of the drawing: sharp on a slide, barely readable
MAX_PIXELS = 40_000_000  # larger images do not open in common programs
SIZE = re.compile(r'<svg\b[^>]*?\swidth="([\d.]+)" height="([\d.]+)"')
# A browser resolves `sans-serif` itself. Here the first installed font is used; other fonts provide the characters it lacks.
FAMILIES = {
    "ui-monospace,monospace": "'DejaVu Sans Mono','Noto Sans Mono','Liberation Mono',Menlo,Consolas,'Courier New',monospace",
    "system-ui,sans-serif": "'DejaVu Sans','Noto Sans','Liberation Sans',Arial,Helvetica,'Segoe UI',Roboto,sans-serif",
}
BLANK = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    "<style>text{font:12px system-ui,sans-serif}</style><text y='15'></text></svg>"
)


def _with_fonts(svg: str) -> str:
    """The drawing with font names instead of generic families."""
    for generic, families in FAMILIES.items():
        svg = svg.replace(generic, families)
    return svg


def check_raster(option: str) -> None:
    """Raise if PNG files cannot be written. Call it before the work."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise ResourceError(option, ".png requires the package resvg-py", "run pip install resvg-py, or write .svg") from None
    without_text, with_text = (
        svg_to_bytes(svg_string=_with_fonts(svg)) for svg in (BLANK, BLANK.replace("></text>", ">a</text>"))
    )
    if without_text == with_text:
        raise ResourceError(option, ".png requires a font and none is installed", "install DejaVu Sans or write .svg")


def raster(svg: str) -> bytes:
    """The drawing as a PNG at twice its size, or at the largest size that programs can open."""
    from resvg_py import svg_to_bytes

    match = SIZE.search(svg)
    if match is None:
        raise UsageError("raster", "the first tag of a drawing must have width and height, in this order")
    width, height = float(match[1]), float(match[2])
    zoom = min(MAX_ZOOM, (MAX_PIXELS / (width * height)) ** 0.5)
    if zoom < MIN_ZOOM:
        raise UsageError(".png", f"a picture of {width:,.0f} x {height:,.0f} would be too small to read", "write .svg or .html")
    return bytes(svg_to_bytes(svg_string=_with_fonts(svg), zoom=zoom))
