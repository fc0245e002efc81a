"""The screen of ``wkvm top``."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static
from wkvm_client.aio import Client
from wkvm_client.errors import ClientError
from wkvm_client.watching import StateNews, StateTable

from wkvm.cli.states_output import names_of
from wkvm.cli.terminal import on_one_line
from wkvm.cli.top.feed import news_of
from wkvm.cli.top.figures import COLUMNS, SORTS, TO_THE_RIGHT, Readings, details, gauges, rows

MAX_ROWS = 500
"""Rows that are drawn; a filter finds the others."""
DRAW_S = 0.25
RETRY_S = 2.0

Connect = Callable[[], Awaitable[Client]]


class Ask(ModalScreen[str | None]):
    """Asks for a text; None where the user has changed their mind."""

    CSS = """
    Ask { align: center middle; }
    Ask > Vertical { width: 64; height: auto; border: round $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        """A question and a line to answer it."""
        with Vertical():
            yield Static(on_one_line(self._question), markup=False)
            yield Input(on_one_line(self._value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """It is answered."""
        self.dismiss(event.value)


class Tell(ModalScreen[None]):
    """Shows a text until a key is pressed."""

    CSS = """
    Tell { align: center middle; }
    Tell > Static { width: 90%; max-height: 80%; border: round $primary; padding: 0 1; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(self._text, markup=False)

    def on_key(self) -> None:
        """It was read."""
        self.dismiss(None)


class TopApp(App[None]):
    """States as a table, gauges above it, keys below it.

    Args:
        connect: makes a connection.
        address: what is shown of where that goes.
        prefix: of the names of states that are shown.
        interval_s: between two readings of gauges.

    Attributes:
        fatal: why the first connection could not be made, if it could not.
    """

    TITLE = "wkvm top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #gauges { height: 2; padding: 0 1; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("f", "fork", "Fork"),
        ("h", "hibernate", "Hibernate"),
        ("r", "resume", "Resume"),
        ("d", "delete", "Delete"),
        ("s", "sort", "Sort"),
        ("slash", "filter", "Filter"),
        ("q", "quit", "Quit"),
    ]

    def __init__(
        self, connect: Connect, *, address: str, prefix: str = "", interval_s: float = 1.0
    ) -> None:
        super().__init__()
        self._connect = connect
        self._address = address
        self._prefix = prefix
        self._interval_s = interval_s
        self._client: Client | None = None
        self._order = next(iter(SORTS))
        self._wanted = ""
        self._is_stale = True
        self._drawn: list[str] = []
        self.readings = Readings()
        self.states = StateTable()
        self.fatal: ClientError | None = None

    def compose(self) -> ComposeResult:
        """Gauges, the table, what was done last, the keys."""
        yield Static(id="gauges", markup=False)
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield Static(on_one_line(f"connecting to {self._address}"), id="status", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin."""
        table = self._table
        for title in COLUMNS:
            table.add_column(title, key=title)
        self.run_worker(self._follow(), exclusive=True)
        self.set_interval(DRAW_S, self._draw)

    # --- the server -----------------------------------------------------------------------

    async def _follow(self) -> None:
        """Keep what is shown up to date, over as many connections as it takes."""
        has_been = False
        while True:
            try:
                async with await self._connect() as client:
                    self._client = client
                    has_been = True
                    self.readings.clear()
                    server = client.server
                    self.say(f"{self._address}   {server.model}   {server.server}")
                    async for news in news_of(client, self._prefix, self._interval_s):
                        if isinstance(news, StateNews):
                            self.states.apply(news)
                        else:
                            self.readings.add(news)
                        self._is_stale = True
            except ClientError as error:
                if not has_been:
                    self.fatal = error
                    self.exit()
                    return
                self.say(f"{error}; trying again")
            finally:
                self._client = None
            await asyncio.sleep(RETRY_S)

    def _do(self, what: str, work: Callable[[Client], Awaitable[object]]) -> None:
        """Carry out an operation, and say what came of it."""

        async def run() -> None:
            client = self._client
            if client is None:
                self.say(f"{what}: there is no connection")
                return
            try:
                await work(client)
            except ClientError as error:
                self.say(f"{what}: {type(error).__name__}: {error}")
            else:
                self.say(f"{what}: done")

        self.run_worker(run())

    # --- the screen -----------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Show what was done last."""
        self.query_one("#status", Static).update(on_one_line(text))

    def _draw(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False
        self.query_one("#gauges", Static).update("\n".join(gauges(self.readings, self.states)))
        shown, n = rows(
            self.states,
            order=self._order,
            wanted=self._wanted,
            most=MAX_ROWS,
            now=time.time(),
        )
        table = self._table
        names = [one.name for one in shown]
        chosen = self.chosen
        is_same = names == self._drawn
        if not is_same:
            table.clear()
        for one in shown:
            cells = [
                Text(on_one_line(cell), justify="right" if title in TO_THE_RIGHT else "left")
                for title, cell in zip(COLUMNS, one.cells, strict=True)
            ]
            if not is_same:
                table.add_row(*cells, key=one.name)
                continue
            for title, cell in zip(COLUMNS, cells, strict=True):
                if table.get_cell(one.name, title) != cell:
                    table.update_cell(one.name, title, cell)
        self._drawn = names
        if not is_same and chosen in names:
            table.move_cursor(row=names.index(chosen))
        table.border_subtitle = f"{len(shown):,} of {n:,}, by {self._order}"

    @property
    def _table(self) -> DataTable[Text]:
        return cast("DataTable[Text]", self.query_one("DataTable"))

    @property
    def chosen(self) -> str | None:
        """The name under the cursor."""
        table = self._table
        return self._drawn[table.cursor_row] if table.cursor_row < len(self._drawn) else None

    # --- keys -----------------------------------------------------------------------------

    def action_sort(self) -> None:
        """Go on to the next order."""
        orders = list(SORTS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._is_stale = True
        self.say(f"by {self._order}")

    def action_filter(self) -> None:
        """Show only states whose names, tags or tiers have a text."""

        def take(text: str | None) -> None:
            if text is not None:
                self._wanted = text
                self._is_stale = True

        self.push_screen(Ask("in the name, the tier or a tag:", self._wanted), take)

    def action_fork(self) -> None:
        """Make a new state on the bytes of the chosen one."""
        name = self.chosen
        if name is None:
            return

        def take(child: str | None) -> None:
            if child:
                self._do(
                    f"fork of {name} to {child}", lambda client: client.states.fork(name, [child])
                )

        self.push_screen(Ask(f"fork {name} to:", f"{name}-2"), take)

    def action_hibernate(self) -> None:
        """Move the bytes of the chosen state to the disk."""
        if (name := self.chosen) is not None:
            self._do(f"hibernate {name}", lambda client: client.states.hibernate(name))

    def action_resume(self) -> None:
        """Bring them up."""
        if (name := self.chosen) is not None:
            self._do(f"resume {name}", lambda client: client.states.resume(name))

    def action_delete(self) -> None:
        """Delete the chosen state, if the user says its name."""
        name = self.chosen
        if name is None:
            return

        def take(said: str | None) -> None:
            if said == name:
                self._do(f"delete {name}", lambda client: client.states.delete(name))
            elif said is not None:
                self.say(f"{name} was not deleted")

        self.push_screen(Ask(f"delete {name} with all its versions? type its name:"), take)

    def on_data_table_row_selected(self) -> None:
        """Show where the chosen state comes from."""
        if (name := self.chosen) is not None:
            self._do(f"log of {name}", lambda client: self._show(client, name))

    async def _show(self, client: Client, name: str) -> None:
        info = await client.states.get(name)
        log = await client.states.log(name, limit=20)
        history = [
            (
                f"{one.name}@{one.version}",
                one.provenance.operation,
                names_of(one.provenance),
            )
            for one in log.entries
        ]
        self.push_screen(Tell(details(info, history)))
