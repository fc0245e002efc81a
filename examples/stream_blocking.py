"""Stream the answer to a question from a running server: start ``wkvm serve``, then this."""

import sys

import wkvm_client

from wkvm.assembly.models import BUNDLED
from wkvm.gateway.text import IncrementalDecoder, load_chat_template, load_tokenizer

tokenizer = load_tokenizer(BUNDLED)
question = [{"role": "user", "content": "What is the sun?"}]
prompt = load_chat_template(BUNDLED).encode(question, tokenizer)
decoder = IncrementalDecoder(tokenizer)
print("Assistant:", end="")  # the prompt ends so, and the answer goes on with a space
with wkvm_client.connect(*sys.argv[1:] or ["tcp://127.0.0.1:8001"]) as client:
    for token_id in client.generate(prompt, max_tokens=64, temperature=0):
        print(decoder.feed([token_id]), end="", flush=True)
print(decoder.flush())
