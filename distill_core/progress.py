"""How a long step says where it is: into the run's folder for every screen, and as one line on a terminal."""

import sys
import time
from typing import TextIO

from .runs import Run
from .units import show_time

WRITE_EVERY_S = 0.5


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """Raised at a safe point after a stop was asked for; what was finished is kept."""


class Progress:
    """Reports of one run. `screen` gets one line that is overwritten (a terminal) or one every ten seconds (a file)."""

    def __init__(self, run: Run, *, screen: TextIO | None = None) -> None:
        self.run = run
        self.screen = screen if screen is not None else sys.stderr
        self._phase = ""
        self._started = time.monotonic()
        self._done_at_start = 0
        self._written = 0.0
        self._shown = 0.0
        self._line_open = False

    def phase(self, words: str) -> None:
        """What begins now, in words."""
        self._phase, self._started, self._done_at_start = words, time.monotonic(), -1
        self.run.update(phase=words, done=0, total=0, unit="", time_left_s=None)
        self._close_line()
        print(words, file=self.screen, flush=True)

    def at(self, done: int, total: int, unit: str) -> float | None:
        """done of total; returns the seconds left, none before the first piece is timed. Raises Stopped when that was asked for."""
        now = time.monotonic()
        if self._done_at_start < 0:
            self._started, self._done_at_start = now, done
        worked = done - self._done_at_start
        left = (now - self._started) / worked * (total - done) if worked > 0 else None
        if now - self._written >= WRITE_EVERY_S or done >= total:
            self._written = now
            self.run.update(done=done, total=total, unit=unit, time_left_s=left)
        self._show(f"  {done:,} of {total:,} {unit}, {show_time(left)} left", final=done >= total)
        return left

    def stop_if_asked(self) -> None:
        """Raises Stopped when a stop was asked for."""
        if self.run.stop_requested():
            raise Stopped

    def say(self, words: str) -> None:
        """One line for the reader of the log."""
        self._close_line()
        print(words, file=self.screen, flush=True)

    def _show(self, line: str, *, final: bool) -> None:
        now = time.monotonic()
        on_terminal = self.screen.isatty()
        if not final and now - self._shown < (0.2 if on_terminal else 10.0):
            return
        self._shown = now
        print(f"\r{line:<78}" if on_terminal else line, end="" if on_terminal and not final else "\n", file=self.screen, flush=True)
        self._line_open = on_terminal and not final

    def _close_line(self) -> None:
        if self._line_open:
            print(file=self.screen, flush=True)
            self._line_open = False


class Silent(Progress):
    """For the processes of a launch that are not the first: what they do is said by the first."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)

    def phase(self, words: str) -> None:
        pass

    def at(self, done: int, total: int, unit: str) -> float | None:
        return None

    def say(self, words: str) -> None:
        pass
