"""One line of progress that rewrites itself on a terminal, and is printed now and then when the output is a file."""

from __future__ import annotations

import shutil
import sys
import time

QUIET_SECONDS = 15.0  # between two lines of progress in a file


class Progress:
    """`show` may be called as often as wanted; `done` prints a line that stays."""

    def __init__(self, name: str):
        self.name = name
        self.tty = sys.stdout.isatty()
        self.shown = time.monotonic()

    def show(self, text: str):
        line = f"[{self.name}] {text}"
        if self.tty:
            width = shutil.get_terminal_size().columns - 1
            print("\r\033[K" + line[:width], end="", flush=True)
        elif time.monotonic() - self.shown >= QUIET_SECONDS:
            print(line, flush=True)
            self.shown = time.monotonic()

    def done(self, text: str):
        print(("\r\033[K" if self.tty else "") + f"[{self.name}] {text}", flush=True)
