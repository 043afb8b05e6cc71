"""What all charts share: the palette, a question for a title, container width, quiet axes, and where the rows come from."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import altair as alt

from ..language import ENGLISH, Say

Row = Mapping[str, Any]
Live = Literal["live"]
Rows = Sequence[Row] | Live

SCHEMA_VERSION = alt.SCHEMA_VERSION
"""Version of Vega-Lite that the specs are written in."""
LIVE: Final[Live] = "live"
"""Name of the data source that the live panel fills, and what the training charts take in place of rows."""

# Okabe and Ito's palette, told apart with every common kind of colour blindness; blue a little lighter, for a dark page, and purple
# darker, to keep it from grey. Orange and sky are for areas only: as lines they are too pale on white. tests/test_palette.py measures.
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY = "#0f7dbf", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#a04a8c", "#8a8f98"


LOCALES = {
    "pt": alt.Locale(
        number=alt.NumberLocale(decimal=",", thousands="\N{NARROW NO-BREAK SPACE}", grouping=[3], currency=["", "\N{NO-BREAK SPACE}€"])
    )
}
"""Language -> how Vega writes numbers on axes and in tooltips: the marks that language.Say.figure writes. English is Vega's own."""


TITLE_LETTERS, SUBTITLE_LETTERS = 42, 52
"""In a line of a chart that is 310 pixels wide, as on a page of 390: 13 bold and 11 points."""


def data_of(rows: Rows) -> Any:
    return alt.NamedData(name=LIVE) if isinstance(rows, str) else alt.Data(values=[dict(row) for row in rows])


def _title(question: str, reading: str = "") -> alt.TitleParams:
    """In lines that fit a phone, for Vega cuts a title off at the frame; figures.js breaks them anew for the frame it has."""
    title, subtitle = _lines(question, TITLE_LETTERS), _lines(reading, SUBTITLE_LETTERS)
    return alt.TitleParams(title, subtitle=subtitle) if reading else alt.TitleParams(title)


def _lines(words: str, letters: int) -> str | list[str]:
    lines = textwrap.wrap(words, letters)
    return lines if len(lines) > 1 else words


def styled(chart: Any, question: str, reading: str = "", *, height: int = 280, say: Say = ENGLISH) -> Any:
    """Container width, a question for a title, quiet axes, a menu to save the picture; the same on every chart. Words are said already."""
    fit = alt.AutoSizeParams(type="fit", contains="padding", resize=True)
    name = re.sub(r"[^\w]+", "-", question.lower()).strip("-")
    menu = {
        "actions": {"export": True, "source": False, "compiled": False, "editor": False},  # the editor is another site
        "downloadFileName": name,
        "scaleFactor": {"png": 2},
        "i18n": {"CLICK_TO_VIEW_ACTIONS": say("Save this chart"), "PNG_ACTION": say("Save as PNG"), "SVG_ACTION": say("Save as SVG")},
    }
    return (
        chart.properties(title=_title(question, reading), width="container", height=height, usermeta={"embedOptions": menu})
        .configure(background="transparent", font="sans-serif", autosize=fit, locale=LOCALES.get(say.code, alt.Undefined))
        .configure_view(strokeWidth=0)
        .configure_axis(gridOpacity=0.35, domainOpacity=0.5, titleFontWeight="normal", labelFontSize=11, titleFontSize=11)
        .configure_title(anchor="start", fontSize=13, subtitleFontSize=11, offset=8)
        .configure_legend(orient="bottom", title=None, labelFontSize=11, symbolStrokeWidth=3, columnPadding=14, labelLimit=0, columns=2)
    )


def spec(chart: Any) -> dict[str, Any]:
    """The chart as a Vega-Lite dict whose LIVE source starts empty, as the panel needs it."""
    made = chart.to_dict()
    made["datasets"] = {**made.get("datasets", {}), LIVE: []}
    return made
