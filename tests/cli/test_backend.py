"""The connection that complete and chat share."""

import signal

import pytest
import wkvm_client
from wkvm_client.errors import ConnectFailedError, InvalidParameterError

from tests.cli.conftest import KEY, RunningServer, wait_until_idle
from wkvm.assembly.backend import Backend, Remote
from wkvm.assembly.models import BUNDLED
from wkvm.cli.complete import follow
from wkvm.gateway.text import TextStream, load_tokenizer


def test_ids_arrive_in_portions_and_the_completion_has_them_all(server: RunningServer) -> None:
    with Backend.open(Remote(server.address, KEY)) as backend:
        answer = backend.generate([5, 6], max_tokens=20, ignore_eos=True)
        portions = list(answer)
        assert all(portions)
        assert [i for ids in portions for i in ids] == answer.completion().ids
        assert answer.completion().n_output == 20


def test_a_refusal_is_raised_each_time_it_is_asked_for(server: RunningServer) -> None:
    with Backend.open(Remote(server.address, KEY)) as backend:
        answer = backend.generate([5], temperature=-1.0)
        for _ in range(2):
            with pytest.raises(InvalidParameterError):
                answer.completion()


def test_wrong_arguments_are_raised_and_do_not_hang(server: RunningServer) -> None:
    with Backend.open(Remote(server.address, KEY)) as backend:
        with pytest.raises(TypeError):
            backend.generate([5], no_such_option=1).completion()
        assert backend.generate([5], max_tokens=1).completion().n_output == 1


def test_nobody_there_is_raised_on_opening(tmp_path: object) -> None:
    with pytest.raises(ConnectFailedError):
        Backend.open(Remote(f"unix://{tmp_path}/none"))


def test_closing_ends_a_request_that_is_open(server: RunningServer) -> None:
    with Backend.open(Remote(server.address, KEY)) as backend:
        answer = backend.generate([5], max_tokens=1_000_000, ignore_eos=True)
        next(iter(answer))
    wait_until_idle(server)


def test_text_that_cannot_be_written_cancels_its_request(server: RunningServer) -> None:
    def put(text: str) -> None:
        raise BrokenPipeError

    with Backend.open(Remote(server.address, KEY)) as backend:
        answer = backend.generate([5], max_tokens=1_000_000, ignore_eos=True)
        with pytest.raises(BrokenPipeError):
            follow(answer, TextStream(load_tokenizer(BUNDLED)), put)
        assert answer.completion().reason is wkvm_client.EndReason.CANCELLED


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_request_and_keeps_the_text_up_to_then(server: RunningServer) -> None:
    seen = list[str]()

    def put(text: str) -> None:
        seen.append(text)
        if len(seen) == 1:
            signal.raise_signal(signal.SIGINT)

    tokenizer = load_tokenizer(BUNDLED)
    with Backend.open(Remote(server.address, KEY)) as backend:
        answer = backend.generate([5], max_tokens=1_000_000, ignore_eos=True, seed=1)
        completion, was_interrupted = follow(answer, TextStream(tokenizer), put)
    assert was_interrupted
    assert completion.reason is wkvm_client.EndReason.CANCELLED
    assert 0 < completion.n_output < 1_000_000
    assert tokenizer.decode(completion.ids).startswith(seen[0])


def test_a_stop_text_cancels_the_request(server: RunningServer) -> None:
    tokenizer, seen = load_tokenizer(BUNDLED), list[str]()
    with Backend.open(Remote(server.address, KEY)) as backend:
        answer = backend.generate([5], max_tokens=1_000_000, allowed_ids=[300], ignore_eos=True)
        stream = TextStream(tokenizer, [tokenizer.decode([300] * 5)])
        completion, was_interrupted = follow(answer, stream, seen.append)
    assert seen == []
    assert not was_interrupted
    assert completion.reason is wkvm_client.EndReason.CANCELLED
