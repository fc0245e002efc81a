"""``wkvm inspect``: what a model is, and how many states fit here.

Weights are read only for their digest.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from wkvm.assembly.models import find_model, model_name, require_engine
from wkvm.cli.engine_flags import STATE_FLAGS
from wkvm.cli.flags import values_of
from wkvm.core.config import EngineConfig
from wkvm.core.layout import PAGE_TOKENS, StateLayout, StateOptions
from wkvm.gateway.text import find_tokenizer, load_tokenizer

DEFAULT_SLOTS = EngineConfig().n_slots


def run(args: argparse.Namespace) -> int:
    """Print a report on a model.

    Raises:
        CheckpointError, ConfigError, MissingExtraError, TokenizerError: there is none.
    """
    path = find_model(args.model)
    require_engine()
    state = EngineConfig(**values_of(args, STATE_FLAGS)).state
    report = make_report(path, device=args.device, dtype=args.dtype, state=state)
    if args.json:
        print(json.dumps(report))
    else:
        for line in as_lines(report):
            print(line)
    return 0


def make_report(path: Path, *, device: str, dtype: str, state: StateOptions) -> dict[str, Any]:
    """Everything that is said about a model, as JSON can hold it."""
    import torch

    from wkvm.assembly.memory import slots_that_fit, tokens_that_fit
    from wkvm.models.registry import describe, resolve_device, resolve_dtype
    from wkvm.models.weights import open_checkpoint

    model = describe(path, device=device, dtype=dtype, state=state)
    resolved = resolve_device(device)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    layout = model.layout
    return {
        "name": model_name(path),
        "path": str(path.resolve()),
        "architecture": model.architecture,
        "n_layers": model.n_layers,
        "width": model.width,
        "n_heads": model.n_heads,
        "head_size": model.head_size,
        "vocab_size": model.vocab_size,
        "n_parameters": model.n_parameters,
        "files": list(model.files),
        "file_bytes": model.file_bytes,
        "stored_dtype": model.stored_dtype,
        "digest": open_checkpoint(path).digest(),
        "eos_ids": list(model.eos_ids),
        "tokenizer": _tokenizer(path),
        "device": resolved,
        "dtype": resolve_dtype(dtype, device=resolved, stored=model.stored_dtype),
        "state": {
            "fingerprint": layout.fingerprint,
            "record_bytes": layout.record_bytes,
            "payload_bytes": layout.payload_bytes,
            "tensors": [
                {
                    "name": spec.name,
                    "shape": list(spec.shape),
                    "dtype": spec.dtype,
                    "offset": offset,
                    "bytes": spec.nbytes,
                }
                for spec, offset in zip(layout.tensors, layout.offsets, strict=True)
            ],
            "guest": guest_report(layout),
        },
        "fits": [
            {
                "device": fit.device,
                "free_bytes": fit.free_bytes,
                "weight_bytes": fit.weight_bytes,
                "n_slots": fit.n_slots,
                "guest_tokens": tokens_that_fit(layout, fit),
            }
            for fit in (slots_that_fit(model, device=one, dtype=dtype) for one in devices)
        ],
    }


def guest_report(layout: StateLayout) -> dict[str, Any] | None:
    """What attention layers keep of each token, if there are any."""
    guest = layout.guest
    if guest is None:
        return None
    return {
        "n_layers": guest.n_layers,
        "n_parts": guest.n_parts,
        "n_heads": guest.n_heads,
        "head_dim": guest.head_dim,
        "dtype": guest.dtype,
        "page_tokens": PAGE_TOKENS,
        "page_bytes": guest.page_bytes,
        "token_bytes": guest.token_bytes,
    }


def as_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    state, tokenizer = report["state"], report["tokenizer"]
    rows = [
        ("model", f"{report['name']} ({report['path']})"),
        (
            "architecture",
            f"{report['architecture']}, {report['n_layers']} layers, width {report['width']}, "
            f"{report['n_heads']} heads of {report['head_size']}, "
            f"vocabulary {report['vocab_size']:,}",
        ),
        ("parameters", f"{report['n_parameters']:,}"),
        ("files", f"{', '.join(report['files'])}"),
        ("stored", f"{report['file_bytes']:,} bytes, {report['stored_dtype']}"),
        ("digest", report["digest"]),
        ("end ids", ", ".join(map(str, report["eos_ids"])) or "none"),
        (
            "tokenizer",
            f"{tokenizer['file']}, {tokenizer['vocab_size']:,} ids, digest {tokenizer['digest']}"
            if tokenizer
            else "none",
        ),
        ("runs as", f"{report['dtype']} on {report['device']}"),
        ("fingerprint", state["fingerprint"]),
        (
            "one state",
            f"{state['record_bytes']:,} bytes, {state['payload_bytes']:,} without padding",
        ),
    ]
    lines = [f"{name:<13} {text}" for name, text in rows]
    lines.append(f"  {'offset':>10} {'bytes':>10} {'dtype':<9} {'shape':<22} tensor")
    lines += [
        f"  {one['offset']:>10} {one['bytes']:>10} {one['dtype']:<9} {one['shape']!s:<22} "
        f"{one['name']}"
        for one in state["tensors"]
    ]
    guest = state["guest"]
    if guest is not None:
        lines.append(
            f"{'and a token':<13} {guest['token_bytes']:,} bytes in {guest['n_layers']} layers "
            f"that attend: {guest['n_parts']} x {guest['n_heads']} x {guest['head_dim']} of "
            f"{guest['dtype']}, in pages of {guest['page_tokens']} tokens"
        )
    lines += [
        f"{'fits' if at == 0 else '':<13} {fit['n_slots']:,} slots on {fit['device']}: "
        f"{fit['free_bytes']:,} bytes free, {fit['weight_bytes']:,} for weights"
        + (
            ""
            if fit["guest_tokens"] is None
            else f"; beside {DEFAULT_SLOTS} slots {fit['guest_tokens']:,} tokens"
        )
        for at, fit in enumerate(report["fits"])
    ]
    return lines


def _tokenizer(path: Path) -> dict[str, Any] | None:
    file = find_tokenizer(path)
    if file is None:
        return None
    tokenizer = load_tokenizer(file)
    return {"file": file.name, "vocab_size": tokenizer.vocab_size, "digest": tokenizer.digest}
