"""``wkvm store``: verify a store of states, remove what nobody needs, or say what is in it.

It works on the folder itself, so no server may have it open.
"""

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from wkvm.assembly.models import require_engine
from wkvm.cli.status import EXIT_FAILURE


def run(args: argparse.Namespace) -> int:
    """Carry out one action.

    Returns:
        0; 1 if a check found something.

    Raises:
        StoreError: the folder is no store that can be opened.
        StoreFailedError, StoreFullError: its disk refused.
        ConfigError, MissingExtraError: the object store cannot be had.
    """
    require_engine()
    from wkvm.state.objects import open_objects
    from wkvm.state.store import Store

    objects = None if args.objects is None else open_objects(args.objects)
    store = Store.open(args.folder, clock=time.time, objects=objects, create=False)
    try:
        match args.action:
            case "check":
                report: Any = store.check()
            case "gc":
                report = store.gc()
            case _:
                report = store.stat()
    finally:
        store.close()
    fields = asdict(report)
    if args.json:
        print(json.dumps(fields))
    else:
        for line in as_lines(fields):
            print(line)
    return EXIT_FAILURE if fields.get("findings") else 0


def as_lines(fields: dict[str, Any]) -> list[str]:
    """A report for people."""
    findings, lines = fields.get("findings"), list[str]()
    for name, value in fields.items():
        if name == "findings":
            continue
        words = name.removeprefix("n_").replace("_", " ")
        if isinstance(value, dict):
            value = f"{value['n_payloads']:,} payloads, {value['n_bytes']:,} bytes"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        lines.append(f"{words:<18} {value:,}" if isinstance(value, int) else f"{words:<18} {value}")
    if findings is not None:
        lines.append(f"{'findings':<18} {len(findings):,}")
        lines += [
            f"  {one['what']}" + (f" ({one['tenant']}/{one['ref']})" if one["ref"] else "")
            for one in findings
        ]
    return lines
