"""Complete several texts, and answer a question, without a server.

    python examples/offline.py [MODEL]

The model runs in this process; in a notebook the same lines work.
"""

import sys

from wkvm import LLM, SamplingParams

prompts = ["Once upon a time", "The sea was", "A little dog"]
params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=64, stop="\n", seed=1)
question = [{"role": "user", "content": "What is the sun?"}]

with LLM(*sys.argv[1:]) as llm:
    for output in llm.generate(prompts, params):
        print(f"{output.prompt}{output.outputs[0].text}\n")
    (answer,) = llm.chat(question, SamplingParams(temperature=0))
    print(f"{question[0]['content']} {answer.outputs[0].text}")
