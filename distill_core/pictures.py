"""Charts that are drawn again in place: the app sends rows, the browser changes the picture, no chart is made anew.

The chart library is built once, offline, into the user's folder; panel.py uses it too.
"""

import importlib.metadata
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from . import charts
from .language import ENGLISH, Say
from .paths import PACKAGE, home

VEGA_LITE = ".".join(charts.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one JavaScript text; built once (about 2 s, no network) into home()/assets."""
    version = importlib.metadata.version("vl-convert-python")
    path = home() / "assets" / f"vega-embed-{VEGA_LITE}-{version}.js"
    if not path.exists():
        import vl_convert

        made = vl_convert.javascript_bundle("globalThis.distillVegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_text(made, encoding="utf-8")
        os.replace(partial, path)
    return path.read_text(encoding="utf-8")


def module_of(*names: str) -> str:
    """A widget's JavaScript: the chart library, what frames have in common, and the files named."""
    files = ("figures.js", *names)
    return "\n".join([vega_bundle(), *((PACKAGE / name).read_text(encoding="utf-8") for name in files)])


def picture(chart: Any, name: str, *, field: str = "", empty: str = "", reading: str = "", is_wide: bool = False) -> dict[str, Any]:
    """A chart over charts.LIVE, for a widget. name: of its rows, and of the file it is saved as.

    field: the row key that a live panel waits for; empty: what to say until there are rows; reading: how to read it; is_wide: the
    whole width, where two fit side by side.
    """
    return {"spec": charts.spec(chart), "name": name, "field": field, "empty": empty, "reading": reading, "wide": is_wide}


def frame_words(say: Say) -> dict[str, str]:
    """What frames say by themselves."""
    return {"save": say("Save this chart as {kind}", kind="{kind}")}


class Pictures(anywidget.AnyWidget):
    """Charts over rows that change: made once, then given rows by name of the picture. `owner` begins the name of a saved file."""

    pictures = traitlets.List(traitlets.Dict()).tag(sync=True)
    words = traitlets.Dict().tag(sync=True)
    owner = traitlets.Unicode().tag(sync=True)
    rows = traitlets.Dict().tag(sync=True)

    def __init__(self, pictures: Sequence[Mapping[str, Any]], *, owner: str, say: Say = ENGLISH) -> None:
        if "_esm" not in Pictures.__dict__:  # marimo wants a class attribute; reading it at import would build it at import
            Pictures._esm = module_of("pictures.js")
        super().__init__(pictures=list(pictures), words=frame_words(say), owner=owner, rows={})

    def show(self, **rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of each picture, by its name; they replace those it had."""
        self.rows = {name: [dict(row) for row in own] for name, own in rows.items()}
