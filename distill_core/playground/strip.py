"""The text of a window as a widget: click a token, or move with the arrow keys, and `position` says which."""

from itertools import count

import anywidget
import traitlets

from ..language import ENGLISH, Say
from ..paths import PACKAGE
from .window import Window

_serial = count()


class TokenStrip(anywidget.AnyWidget):
    """A window token by token, shaded by how much each surprised the teacher, with the teacher's first choices at the marked one."""

    _esm = PACKAGE / "playground" / "strip.js"
    tokens = traitlets.List(traitlets.Dict()).tag(sync=True)
    words = traitlets.Dict().tag(sync=True)
    serial = traitlets.Int().tag(sync=True)
    """Tells the elements of several strips on one page apart."""
    position = traitlets.Int().tag(sync=True)

    def __init__(self, window: Window, *, position: int | None = None, say: Say = ENGLISH) -> None:
        words = {
            "locale": say.locale,
            "label": say("The window's tokens"),
            "said": say("The text goes on with {token}, {p} by the teacher.", token="{token}", p="{p}"),
            "help": say("Click a token, or use the arrow keys. The stronger its colour, the more it surprised the teacher."),
        }
        first = window.first_asked if position is None else window.nearest_asked(position)
        super().__init__(tokens=window.tokens(), words=words, serial=next(_serial), position=first)
