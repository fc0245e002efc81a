"""Text that somebody else made, such as a model or a server, on its way to a terminal."""

import re
from typing import TextIO

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The C0 and C1 controls and DEL, but newline and tab."""
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""All controls, and what ends a line or turns the direction of writing round."""


def harmless(text: str, file: TextIO) -> str:
    r"""Text as it can be written to ``file``.

    A terminal obeys control characters: it would move the cursor over what was written before,
    change its title or answer on standard input. They become ``\x1b`` and the like there;
    for a file or a pipe the text stays what it is.
    """
    if not file.isatty():
        return text
    return CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def on_one_line(text: str) -> str:
    r"""Text as one line of a screen, whatever is in it: ``\x1b``, ``\u202e`` and the like are told.

    For a screen that is drawn, where nothing but what draws it may say where something is.
    """

    def told(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSEEN.sub(told, text)
