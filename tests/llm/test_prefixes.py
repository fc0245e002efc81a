"""What ``wkvm.LLM`` tells of prompts that begin as others did."""

from wkvm import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4)
STEM = "Once upon a time there was a little dog who lived in a big house near the sea. " * 20


def test_a_prompt_that_comes_again_says_what_was_not_computed() -> None:
    with LLM(device="cpu", slots=4) as model:
        (first,) = model.generate([STEM], GREEDY)
        assert first.cached_tokens == 0
        (again,) = model.generate([STEM], SamplingParams(temperature=0, max_tokens=4, n=2))
        n_cached = (len(again.prompt_ids) - 1) // 64 * 64
        assert again.cached_tokens == n_cached
        of_second = len(again.prompt_ids) - 1
        assert [output.cached_tokens for output in again.outputs] == [n_cached, of_second]
        assert again.outputs[0].ids == first.outputs[0].ids
