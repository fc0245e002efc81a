"""Stream the answer to a question through OpenAI's client.

pip install openai
wkvm serve
python examples/openai_chat.py [BASE_URL]
"""

import os
import sys

import openai

base_url = sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000/v1"
# A server without keys takes any word.
client = openai.OpenAI(base_url=base_url, api_key=os.environ.get("WKVM_API_KEY", "none"))
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "What is the sun?"}],
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
