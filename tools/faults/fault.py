"""What a planted fault is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: in ``file``, ``old`` (which is there once) becomes ``new``.

    Attributes:
        what: the fault, in words.
        tests: where it is looked for: files or node ids, as pytest takes them.
    """

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
