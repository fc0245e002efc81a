"""Text that somebody else made, such as a model or a server, on its way to a terminal."""

import re
from typing import TextIO

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The C0 and C1 controls and DEL, but newline and tab."""


def harmless(text: str, file: TextIO) -> str:
    r"""Text as it can be written to ``file``.

    A terminal obeys control characters: it would move the cursor over what was written before,
    change its title or answer on standard input. They become ``\x1b`` and the like there;
    for a file or a pipe the text stays what it is.
    """
    if not file.isatty():
        return text
    return CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
