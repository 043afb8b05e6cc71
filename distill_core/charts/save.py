"""A chart as a file, for those who work at a terminal."""

from pathlib import Path
from typing import Any

from ..errors import ConfigError

WIDTH_PX = 640
"""Of a chart saved as a picture; in a page it takes the page's width."""


def save_chart(chart: Any, path: Path) -> None:
    """Write it as .html (opens without a network), .svg, .png or .json. Raises ConfigError for another ending."""
    if path.suffix not in (".html", ".svg", ".png", ".json"):
        raise ConfigError(f"--chart {path}: a chart is written as .html, .svg, .png or .json.")
    if path.suffix == ".html":
        chart.save(str(path), inline=True)
    else:
        chart.properties(width=WIDTH_PX).save(str(path))
