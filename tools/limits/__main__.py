"""``python -m tools.limits``."""

from tools.limits import PAGE, written

PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
