"""The pictures of docs/concepts.md: the life of a state, its tiers, lineage.

    python -m tools.pictures

They follow the reader's choice of a light or a dark page.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "img"

STYLE = """
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .small { font-size: 11.5px; fill: #59636e; }
  .name { font-family: ui-monospace, Menlo, Consolas, monospace; font-weight: 600; }
  .page { fill: #ffffff; }
  .box { fill: #f6f8fa; stroke: #818b98; }
  .live { fill: #dff3e4; stroke: #2f8f4e; }
  .kept { fill: #ddebfb; stroke: #2f6fc0; }
  .made { fill: #fbe8d3; stroke: #b8701a; }
  .line { fill: none; stroke: #59636e; stroke-width: 1.5; }
  .head { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .small { fill: #9198a1; }
    .page { fill: #0d1117; }
    .box { fill: #151b23; stroke: #656c76; }
    .live { fill: #12301d; stroke: #3fb065; }
    .kept { fill: #122a47; stroke: #58a0f0; }
    .made { fill: #3a2710; stroke: #d99a4e; }
    .line { stroke: #9198a1; }
    .head { fill: #9198a1; }
  }
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """A line of words; ``y`` is its baseline."""
    given = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{given}>{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, *rows: str) -> str:
    """A box with rows of words in its middle; the first is a name, the others are small."""
    middle, step = x + width / 2, 17
    top = y + height / 2 - step * (len(rows) - 1) / 2 + 4.5
    lines = [
        text(middle, top + step * n, row, "small" if n else "name") for n, row in enumerate(rows)
    ]
    frame = (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    )
    return "\n".join([frame, *lines])


def arrow(*points: tuple[float, float]) -> str:
    """A line through points, with a head at the last."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="line" marker-end="url(#head)" points="{path}"/>'


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """An SVG."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            ' markerHeight="8" orient="auto"><path class="head" d="M0,0.5 L8,4 L0,7.5 z"/>'
            "</marker></defs>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def life() -> str:
    """A turn: from a version, through a slot, to the next version."""
    return picture(
        760,
        250,
        "The life of a state through one turn",
        [
            box(16, 62, 150, 76, "kept", "fox@1", "a version:", "it never changes"),
            arrow((166, 100), (252, 100)),
            text(209, 90, "copied", "small"),
            box(
                254,
                46,
                252,
                108,
                "live",
                "a slot",
                "reads the prompt, a chunk a step,",
                "writes the answer, an id a step",
            ),
            arrow((506, 100), (592, 100)),
            text(549, 90, "committed", "small"),
            box(594, 62, 150, 76, "kept", "fox@2", "a version: whole,", "or not at all"),
            text(380, 26, "request: state = fox, prompt, save_as = fox", "name"),
            arrow((380, 32), (380, 44)),
            arrow((380, 154), (380, 186), (92, 186), (92, 142)),
            text(236, 204, "cancelled, failed, timed out: fox@1 is the newest, as before", "small"),
            text(744, 160, "its last id is pending:", "small", "end"),
            text(744, 176, "sampled, and fed first", "small", "end"),
            text(744, 192, "when fox@2 is gone on from", "small", "end"),
            text(380, 236, "No token that fox@1 has read is computed again.", "small"),
        ],
    )


def tiers() -> str:
    """Where bytes are, and what moves them."""
    rows = [
        ("live", "device", "slots: states that are being worked on now"),
        ("kept", "host", "memory: what was used last, and what waits for the disk"),
        ("kept", "disk", "--state-dir: durable, read back and compared"),
        ("box", "cold", "--state-cold: an object store, or another folder"),
    ]
    parts = list[str]()
    for at, (kind, name, words) in enumerate(rows):
        y = 16 + at * 72
        parts += [
            f'<rect class="{kind}" x="150" y="{y}" width="460" height="48" rx="6"/>',
            text(174, y + 29, name, "name", "start"),
            text(240, y + 29, words, "small", "start"),
        ]
        if at:
            parts += [arrow((300, y - 24), (300, y - 2)), arrow((460, y), (460, y - 22))]
    parts += [
        text(134, 60, "a request ends,", "small", "end"),
        text(134, 76, "or gives up its slot", "small", "end"),
        text(134, 134, "not used for a while,", "small", "end"),
        text(134, 150, "hibernate, or no room", "small", "end"),
        text(134, 206, "hibernate,", "small", "end"),
        text(134, 222, "tier = cold", "small", "end"),
        text(626, 60, "a request goes on", "small", "start"),
        text(626, 76, "from it", "small", "start"),
        text(626, 134, "used, or resume;", "small", "start"),
        text(626, 150, "every byte is verified", "small", "start"),
        text(380, 310, "A handle stays the same in every tier. A tier is left", "small"),
        text(380, 326, "only when the one below has a verified copy.", "small"),
    ]
    return picture(760, 344, "The tiers of a state", parts)


def lineage() -> str:
    """What the guide makes."""
    return picture(
        760,
        300,
        "The lineage of the states in the guide",
        [
            box(16, 118, 96, 44, "kept", "fox@1"),
            arrow((112, 140), (184, 140)),
            text(148, 131, "generate", "small"),
            box(186, 118, 96, 44, "kept", "fox@2"),
            arrow((282, 140), (310, 140), (310, 50), (338, 50)),
            arrow((282, 140), (310, 140), (310, 220), (338, 220)),
            text(304, 112, "fork", "small", "end"),
            box(340, 28, 96, 44, "kept", "bear@1"),
            arrow((436, 50), (508, 50)),
            text(472, 41, "generate", "small"),
            box(510, 28, 96, 44, "kept", "bear@2"),
            arrow((388, 72), (388, 104), (696, 104), (696, 74)),
            text(542, 121, "rollback: the bytes of bear@1, as a new version", "small"),
            box(648, 28, 96, 44, "kept", "bear@3"),
            box(340, 198, 96, 44, "kept", "rain@1"),
            arrow((436, 220), (508, 220)),
            text(472, 211, "generate", "small"),
            box(510, 198, 96, 44, "kept", "rain@2"),
            arrow((606, 220), (646, 220)),
            text(627, 190, "mutate", "small"),
            text(627, 263, "decay, factor 0", "small"),
            box(648, 198, 96, 44, "made", "blank@1"),
            text(
                380,
                288,
                "Every arrow is a record: what was done, with which parameters, to what.",
                "small",
            ),
        ],
    )


PICTURES: dict[str, Callable[[], str]] = {
    "state-life.svg": life,
    "state-tiers.svg": tiers,
    "state-lineage.svg": lineage,
}


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
