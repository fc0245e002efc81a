"""Train a small RWKV-7 language model from plain text, and write a folder that wkvm serves.

The corpus is one or more UTF-8 text files (``.xz`` too) in which a line ``<|endoftext|>`` ends
each document. From it this script trains a byte-level BPE tokenizer and then the model, on a CPU
in float32 with a recurrence in plain torch, or on a GPU with flash-linear-attention's kernel.

    python -m tools.train_rwkv7 --out my-model --steps 500 corpus.txt
    wkvm serve my-model

What is here is for small models on one machine: no resuming, no sharding over devices.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.rwkv7_corpus import (
    END_OF_TEXT,
    END_OF_TURN,
    PAD,
    Batches,
    encode,
    read_documents,
    train_tokenizer,
)
from tools.rwkv7_model import CHUNK, RWKV7, Shape, wkv_chunked, wkv_fla


def loss_of(model: RWKV7, batch: tuple[Tensor, Tensor, Tensor], device: torch.device) -> Tensor:
    """Mean negative log-likelihood, nats per token."""
    ids, segments, targets = (x.to(device, non_blocking=True) for x in batch)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(ids, segments)
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_optimizer(model: RWKV7, rate: float) -> torch.optim.AdamW:
    """AdamW: weight decay on matrices alone, and twice the rate for the decays' biases."""
    matrices, biases, decays = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith("w_lora.lora.2.bias"):
            decays.append(parameter)
        elif parameter.dim() == 2 and name.endswith("weight") and "embeddings" not in name:
            matrices.append(parameter)
        else:
            biases.append(parameter)
    groups = [
        {"params": matrices, "weight_decay": 0.05, "scale": 1.0},
        {"params": biases, "weight_decay": 0.0, "scale": 1.0},
        {"params": decays, "weight_decay": 0.0, "scale": 2.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-15)


def rate_at(step: int, steps: int, peak: float, warmup: int) -> float:
    """Learning rate: a linear rise, then half a cosine down to 3% of the peak."""
    fall = 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * min(1.0, (step + 1) / warmup) * fall


def train(
    model: RWKV7, batches: Batches, device: torch.device, options: argparse.Namespace
) -> list[tuple[int, int, float, float]]:
    """Train in place. The log: (step, tokens, mean loss since the last entry, rate)."""
    optimizer = make_optimizer(model, options.rate)
    log: list[tuple[int, int, float, float]] = []
    losses: list[Tensor] = []
    since = time.monotonic()
    for step in range(options.steps):
        rate = rate_at(step, options.steps, options.rate, options.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        loss = loss_of(model, batches.next(), device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        losses.append(loss.detach())
        if step == 0 or (step + 1) % options.log_every == 0 or step + 1 == options.steps:
            mean = float(torch.stack(losses).mean())
            tokens_of_step = batches.rows * batches.length
            speed = len(losses) * tokens_of_step / (time.monotonic() - since)
            seen = (step + 1) * tokens_of_step
            print(f"step {step + 1} tokens {seen} loss {mean:.4f} {speed:.0f} tokens/s")
            losses.clear()
            since = time.monotonic()
            log.append((step + 1, seen, mean, rate))
    return log


@torch.no_grad()
def evaluate(model: RWKV7, batches: Batches, device: torch.device, n: int) -> float:
    """Mean loss over ``n`` batches."""
    return sum(float(loss_of(model, batches.next(), device)) for _ in range(n)) / n


def save_model(model: RWKV7, shape: Shape, tokenizer: Tokenizer, out: Path, shard: int) -> None:
    """Write bfloat16 shards of about ``shard`` bytes, their index, configs and the tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().bfloat16().cpu().contiguous() for k, v in model.state_dict().items()}
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > shard:
            shards.append({})
        shards[-1][name] = tensor
    where: dict[str, str] = {}
    for i, part in enumerate(shards, start=1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(part, out / file, metadata={"format": "pt"})
        (out / file).chmod(0o644)  # the library makes it readable to its owner alone
        where |= dict.fromkeys(part, file)
    total = sum(t.nbytes for t in tensors.values())
    write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": where},
    )
    write_json(
        out / "config.json",
        {
            "architectures": ["RWKV7ForCausalLM"],
            "model_type": "rwkv7",
            "dtype": "bfloat16",
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.width,
            "intermediate_size": shape.ffn_width,
            "num_hidden_layers": shape.n_layers,
            "num_heads": shape.n_heads,
            "head_dim": shape.head_size,
            "decay_low_rank_dim": shape.decay_rank,
            "a_low_rank_dim": shape.a_rank,
            "v_low_rank_dim": shape.v_rank,
            "gate_low_rank_dim": shape.gate_rank,
            "hidden_act": "sqrelu",
            "norm_bias": True,
            "norm_eps": 1e-5,
            "norm_first": True,
            "tie_word_embeddings": False,
            "bos_token_id": END_OF_TEXT,
            "eos_token_id": END_OF_TEXT,
            "pad_token_id": None,
        },
    )
    write_json(
        out / "generation_config.json",
        {
            "bos_token_id": END_OF_TEXT,
            "eos_token_id": [END_OF_TEXT, END_OF_TURN],
            "pad_token_id": PAD,
            "do_sample": True,
            "temperature": 0.8,
            "top_p": 0.9,
            "max_new_tokens": 256,
        },
    )
    tokenizer.save(str(out / "tokenizer.json"))


def write_json(path: Path, value: object) -> None:
    """Write ``value`` with a line break at the end."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description="Train a small RWKV-7 from text; write a folder that wkvm serves."
    )
    add = parser.add_argument
    add("corpus", nargs="+", type=Path, help="text files, .xz too; <|endoftext|> lines between")
    add("--out", type=Path, required=True, help="folder to write")
    add("--max-chars", type=int, help="read no more than about this much of the corpus")
    add("--tokenizer", type=Path, help="take this tokenizer.json; train none")
    add("--chat-template", type=Path, help="a chat_template.jinja to put beside the model")
    add("--vocab", type=int, default=4096, help="vocabulary to train (default: %(default)s)")
    add("--width", type=int, default=320)
    add("--layers", type=int, default=6)
    add("--head-size", type=int, default=64)
    add("--ffn", type=int, help="width of the feed-forward part (default: 3.5 times --width)")
    add("--ranks", type=int, nargs=4, default=(32, 32, 16, 64), metavar=("W", "A", "V", "G"))
    add("--steps", type=int, default=2500)
    add("--rows", type=int, default=32, help="rows of a batch (default: %(default)s)")
    add("--length", type=int, default=1024, help="tokens of a row (default: %(default)s)")
    add("--rate", type=float, default=2e-3, help="peak learning rate (default: %(default)s)")
    add("--warmup", type=int, default=150, help="steps of rising rate (default: %(default)s)")
    add("--log-every", type=int, default=100, help="steps (default: %(default)s)")
    add("--shard-mib", type=int, default=13, help="size of a weight file (default: %(default)s)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--threads", type=int, help="CPU threads")
    add("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.length % CHUNK:
        parser.error(f"--length must be a multiple of {CHUNK}")
    if options.width % options.head_size:
        parser.error("--width must be a multiple of --head-size")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Read, train, write."""
    options = parse(argv)
    torch.manual_seed(options.seed)
    if options.threads:
        torch.set_num_threads(options.threads)
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)

    documents = read_documents(options.corpus, options.max_chars)
    if len(documents) < 2:
        raise SystemExit("the corpus needs at least two documents")
    random.Random(options.seed).shuffle(documents)
    if options.tokenizer:
        tokenizer = Tokenizer.from_file(str(options.tokenizer))
    else:
        tokenizer = train_tokenizer(documents, options.vocab, max_chars=30_000_000)
    encoded = encode(tokenizer, documents)
    held_out = max(1, len(encoded) // 200)
    batches = Batches(encoded[held_out:], options.rows, options.length, options.seed)
    check = Batches(encoded[:held_out], options.rows, options.length, options.seed)
    n_tokens = sum(map(len, encoded))
    print(f"{len(documents)} documents, {n_tokens} tokens, {held_out} documents held out")

    shape = Shape(
        vocab_size=tokenizer.get_vocab_size(),
        width=options.width,
        n_layers=options.layers,
        head_size=options.head_size,
        ffn_width=options.ffn or options.width * 7 // 2,
        **dict(zip(("decay_rank", "a_rank", "v_rank", "gate_rank"), options.ranks, strict=True)),
    )
    model = RWKV7(shape, wkv_fla if name == "cuda" else wkv_chunked).to(device)
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"{n_parameters} parameters on {name}")

    began = time.monotonic()
    log = train(model, batches, device, options)
    seconds = time.monotonic() - began
    held_out_loss = evaluate(model, check, device, n=4)
    print(f"loss on held-out documents {held_out_loss:.4f}")

    save_model(model, shape, tokenizer, options.out, options.shard_mib * 2**20)
    if options.chat_template:
        text = options.chat_template.read_text(encoding="utf-8")
        (options.out / "chat_template.jinja").write_text(text, encoding="utf-8")
    write_json(
        options.out / "train_log.json",
        {
            "steps": options.steps,
            "tokens": options.steps * options.rows * options.length,
            "seconds": round(seconds, 1),
            "params": n_parameters,
            "shape": asdict(shape),
            "val": {"held-out": held_out_loss},
            "log": log,
        },
    )
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
