"""Complete a text on a running server, with asyncio.

    wkvm serve
    python examples/complete_text.py [PROMPT [ADDRESS]]

The server deals in token ids; the text layer turns text into ids and back.
"""

import asyncio
import sys

import wkvm_client.aio

from wkvm.assembly.models import BUNDLED
from wkvm.gateway.text import IncrementalDecoder, load_tokenizer


async def main(prompt: str = "Once upon a time", address: str = "tcp://127.0.0.1:8001") -> None:
    """Stream one completion to standard output."""
    tokenizer = load_tokenizer(BUNDLED)
    async with wkvm_client.aio.connect(address) as client:
        stream = await client.generate(
            tokenizer.encode(prompt), max_tokens=64, temperature=0.8, top_p=0.9
        )
        decoder = IncrementalDecoder(tokenizer)
        print(prompt, end="")
        async for token_id in stream:
            print(decoder.feed([token_id]), end="", flush=True)
        completion = await stream.completion()
    print(decoder.flush())
    print(f"{completion.n_output} tokens in {completion.timings.total_s:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
