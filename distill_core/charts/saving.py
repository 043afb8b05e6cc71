"""A chart as a file: SVG for print, PNG for slides, made here and without a network."""

from typing import Any, Literal

Format = Literal["svg", "png"]
WIDTH = 900
"""Pixels; on the screen a chart is as wide as its container."""


def saved(chart: Any, form: Format, *, width: int = WIDTH) -> bytes:
    """The chart as the bytes of a file, on white. Its live data source, if it has one, is empty."""
    import vl_convert  # 84 MB: only for who presses

    from .style import spec

    made = spec(chart) | {"width": width, "background": "white"}
    made["config"] = {name: value for name, value in made.get("config", {}).items() if name != "background"}
    if form == "svg":
        return vl_convert.vegalite_to_svg(made, vl_version="6.4").encode()
    return vl_convert.vegalite_to_png(made, vl_version="6.4", scale=2)
