"""A progress bar on standard error, where somebody can see it: in a terminal or a notebook."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from wkvm.llm.batch import Batch


@contextmanager
def progress_bar(batch: Batch, n_jobs: int, *, is_wanted: bool) -> Generator[Callable[[], None]]:
    """Show how far a batch has come.

    Yields:
        What shows the present numbers; to be called now and then on the thread that entered.
    """
    if not is_wanted:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
    )
    is_seen = console.is_terminal or console.is_jupyter
    with Progress(*columns, console=console, auto_refresh=False, disable=not is_seen) as progress:
        task = progress.add_task("", total=n_jobs, rate=0.0)

        def show() -> None:
            elapsed_s = progress.tasks[0].elapsed or 0.0
            rate = batch.n_ids / elapsed_s if elapsed_s > 0 else 0.0
            progress.update(task, completed=batch.n_done, rate=rate, refresh=True)

        try:
            yield show
        finally:
            show()
