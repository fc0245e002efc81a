#!/usr/bin/env python3
"""The raw client again, for the feature `states`: it checks a running server that has it.

Like raw_client.py, whose MessagePack and connection it uses, it was written from protocol.md and
needs only the Python standard library.

    python3 raw_states.py unix:///tmp/wkvm.sock
"""

# mypy: ignore-errors

import importlib.util
import json
import os
import struct
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("raw", Path(__file__).with_name("raw_client.py"))
raw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(raw)
expect, ids = raw.expect, raw.ids

GENERATE_ON, END_ON = 0x15, 0x1C
CREATE, GET, LIST, FORK, SNAPSHOT, HIBERNATE, RESUME = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26
ROLLBACK, EDIT, DELETE, MUTATE, DIFF, LOG, REPLAY = 0x27, 0x28, 0x29, 0x2A, 0x2B, 0x2C, 0x2D
EXPORT, IMPORT, CHUNK, BYTES_END, BYTE_CREDIT, INTERRUPT = 0x2E, 0x2F, 0x30, 0x31, 0x35, 0x34
VERSIONS, PAGE, TEXT, EXPORT_BEGIN = 0x38, 0x39, 0x3A, 0x3B
NOT_FOUND, EXISTS, STALE, BAD_FILE = 210, 211, 212, 214

# fmt: off
INFO = ["name", "version", "head", "n_versions", "ack", "tier", "content_id", "n_bytes",
        "n_computed", "n_pending", "operation", "parents", "tags", "created_ms", "updated_ms",
        "expires_ms", "model_digest", "layout_fingerprint", "tokenizer_digest", "tail"]
# fmt: on
OURS = f"raw{os.getpid()}."  # a name that was deleted goes on with its numbers
raw.FIELDS |= {
    END_ON: raw.FIELDS[raw.END]
    + " cached_tokens:count= n_computed:count= pending:ids= prompt_left:count= name:text="
    " version:count= ack:text= target:text=",
    VERSIONS: "request_id:count states:list",
    PAGE: "request_id:count states:list next:text",
    TEXT: "request_id:count text:text next:count",
    EXPORT_BEGIN: "request_id:count n_bytes:count state:list_or_nil",
    CHUNK: "request_id:count data:blob",
    BYTES_END: "request_id:count digest:text=",
    BYTE_CREDIT: "request_id:count n_bytes:count",
}
raw.TYPES |= {"list_or_nil": (list, type(None)), "blob": (bytes, bytearray)}
HELLO = (raw.HELLO, "wkvm", 1, 1, ["states"], 1 << 20, "", "raw_states.py")


_pack = raw.pack


def _pack_maps_too(value):
    if not isinstance(value, dict):
        return _pack(value)
    pairs = b"".join(raw.pack(one) for pair in value.items() for one in pair)
    return raw.head(len(value), 0x80, 16, {">BH": 0xDE, ">BI": 0xDF}) + pairs


raw.pack = _pack_maps_too


class Info:
    """What is told of a version, its fields as attributes."""

    def __init__(self, values):
        expect(len(values) == len(INFO), f"a StateInfo of {len(values)} fields")
        vars(self).update(zip(INFO, values, strict=True))


class States(raw.Connection):
    """A connection on which states are agreed on. One lane at a time."""

    def __init__(self, address):
        super().__init__(address, HELLO)
        expect("states" in self.hello_ok.features, "the server has no states")
        self.lane = 0

    def ask(self, tag, *fields):
        """Send a request; what comes for it next."""
        self.lane += 1
        self.send([tag, self.lane, *fields])
        return self.next()

    def next(self):
        """The next message for the lane, pings answered."""
        while True:
            message = self.receive()
            if message.tag == raw.PING:
                self.send([raw.PONG, message.nonce])
            else:
                expect(message.tag == raw.TOKENS or message.request_id == self.lane, str(message))
                return message

    def versions(self, tag, *fields):
        reply = self.ask(tag, *fields)
        expect(reply.tag == VERSIONS, f"no StateVersions: {reply}")
        return [Info(one) for one in reply.states]

    def version(self, tag, *fields):
        (info,) = self.versions(tag, *fields)
        return info

    def fails(self, code, tag, *fields):
        reply = self.ask(tag, *fields)
        expect(reply.tag == raw.FAILED and reply.code == code, f"no Failed {code}: {reply}")
        return reply

    def turn(self, prompt, n=6, *, state="", inline=b"", save_as="", want_inline=False, **sampling):
        """Go on from a state: ids, what came of the state, its bytes."""
        wanted = {"temperature": 0.0, "ignore_eos": True, "max_tokens": n}
        values = raw.SAMPLING | wanted | sampling
        self.lane += 1
        self.send(
            [GENERATE_ON, self.lane, ids(prompt), [values[name] for name in raw.SAMPLING], 0, 0, 0,
             state, len(inline), save_as, None, "cancel", "", want_inline]
        )  # fmt: skip
        if inline:
            self.upload(inline)
        got, data = [], b""
        while True:
            message = self.next()
            if message.tag == raw.TOKENS:
                got += message.ids
            elif message.tag == CHUNK:
                data += message.data
            elif message.tag == END_ON:
                expect(message.n_output == len(got), "n_output is not what came")
                return got, message, data
            else:
                expect(message.tag in (EXPORT_BEGIN, BYTES_END), f"unexpected: {message}")

    def upload(self, data):
        """Send bytes as they are granted."""
        sent = granted = 0
        while sent < len(data):
            while sent == granted:
                message = self.next()
                expect(message.tag == BYTE_CREDIT, f"no StateCredit: {message}")
                granted += message.n_bytes
                expect(granted <= len(data), "more was granted than there is")
            n = min(granted - sent, 262_144, len(data) - sent)
            self.send([CHUNK, self.lane, data[sent : sent + n]])
            sent += n
        self.send([BYTES_END, self.lane])

    def download(self, state, credit=0):
        """The bytes of a state, granted a few at a time."""
        begin = self.ask(EXPORT, state, "state", credit)
        expect(begin.tag == EXPORT_BEGIN, f"no StateExportBegin: {begin}")
        data, left = b"", credit
        while (message := self.next()).tag == CHUNK:
            data += message.data
            if credit:
                left -= len(message.data)
                expect(left >= 0, "more came than was granted")
                if not left:
                    self.send([BYTE_CREDIT, self.lane, credit])
                    left = credit
        expect(message.tag == BYTES_END, f"no StateBytesEnd: {message}")
        expect(len(data) == begin.n_bytes, "another length than was announced")
        return data


def check_a_continuation_is_the_whole(address):
    with States(address) as c:
        whole, _, _ = c.turn(raw.PROMPT, 12)
        first, end, _ = c.turn(raw.PROMPT, 5, save_as=f"{OURS}chat")
        expect((end.name, end.version) == (f"{OURS}chat", 1), f"not saved: {end}")
        expect(end.n_computed + len(end.pending) == len(raw.PROMPT) + 5, f"{end}")
        second, end, _ = c.turn([], 7, state=f"{OURS}chat@1", save_as=f"{OURS}chat")
        expect(end.version == 2 and end.cached_tokens == len(raw.PROMPT) + 4, f"{end}")
        expect(first + second == whole, "not the ids of one request")
        c.versions(DELETE, f"{OURS}chat")


def check_operations(address):
    with States(address) as c:
        made = c.version(CREATE, f"{OURS}a", ids(raw.PROMPT), "", {"kind": "raw"})
        expect(made.n_computed + made.n_pending == len(raw.PROMPT), "not exactly the prompt")
        tail = [word for (word,) in struct.iter_unpack("<I", made.tail)]
        expect(tail == raw.PROMPT, "another tail")
        c.fails(EXISTS, CREATE, f"{OURS}a", ids(raw.PROMPT))
        forks = c.versions(FORK, f"{OURS}a", [f"{OURS}b", f"{OURS}c"])
        expect([one.name for one in forks] == [f"{OURS}b", f"{OURS}c"], "other names")
        expect({one.content_id for one in forks} == {made.content_id}, "other bytes")
        decayed = c.version(MUTATE, "decay", [f"{OURS}b"], f"{OURS}b", '{"factor": 0.5}')
        expect(decayed.version == 2 and decayed.content_id != made.content_id, "not decayed")
        difference = c.ask(DIFF, f"{OURS}a", f"{OURS}b")
        expect(difference.tag == TEXT and not json.loads(difference.text)["equal"], "no difference")
        back = c.version(ROLLBACK, f"{OURS}b", 1)
        expect(back.version == 3 and back.content_id == made.content_id, "not rolled back")
        c.fails(STALE, ROLLBACK, f"{OURS}b", 1, None, 2)
        log = json.loads(c.ask(LOG, f"{OURS}b").text)
        expect([one["version"] for one in log] == [3, 2, 1], f"another log: {log}")
        renamed = c.version(EDIT, f"{OURS}c", f"{OURS}d")
        expect(renamed.name == f"{OURS}d", "not renamed")
        c.fails(NOT_FOUND, GET, f"{OURS}c")
        page = c.ask(LIST, OURS, {"kind": "raw"}, "", "", 1)
        expect(
            page.tag == PAGE and [Info(one).name for one in page.states] == [f"{OURS}a"], "a page"
        )
        expect(json.loads(c.ask(REPLAY, f"{OURS}a").text)["equal"], "a replay made other bytes")
        for name in (f"{OURS}a", f"{OURS}b", f"{OURS}d"):
            expect(c.versions(DELETE, name) == [], "entries of what was deleted")
            c.fails(NOT_FOUND, GET, name)


def check_bytes_come_and_go(address):
    with States(address) as c:
        c.turn(raw.PROMPT, 5, save_as=f"{OURS}e")
        data = c.download(f"{OURS}e")
        expect(c.download(f"{OURS}e", credit=100_000) == data, "other bytes with credit")
        c.lane += 1
        c.send([IMPORT, c.lane, f"{OURS}f", len(data)])
        c.upload(data)
        (info,) = [Info(one) for one in c.next().states]
        expect(info.name == f"{OURS}f" and info.operation == "import", "not imported")
        going_on, _, _ = c.turn([], 6, state=f"{OURS}e")
        expect(c.turn([], 6, state=f"{OURS}f")[0] == going_on, "another state")
        expect(c.turn([], 6, inline=data)[0] == going_on, "another state inline")
        _, _, inline = c.turn(raw.PROMPT, 5, want_inline=True)
        expect(c.turn([], 6, inline=inline)[0] == going_on, "another state at the end")
        c.fails(BAD_FILE, IMPORT, f"{OURS}g", 1)
        c.lane += 1
        c.send([IMPORT, c.lane, f"{OURS}g", len(data)], [BYTES_END, c.lane])
        while (answer := c.next()).tag == BYTE_CREDIT:
            pass
        expect(answer.tag == raw.FAILED and answer.code == BAD_FILE, f"{answer}")
        c.fails(NOT_FOUND, GET, f"{OURS}g")
        for name in (f"{OURS}e", f"{OURS}f"):
            c.versions(DELETE, name)


def check_more_than_was_granted_is_a_violation(address):
    with States(address) as c:
        c.turn(raw.PROMPT, 2, save_as=f"{OURS}h")
        n_bytes = len(c.download(f"{OURS}h"))
        c.versions(DELETE, f"{OURS}h")
        c.lane += 1
        c.send([IMPORT, c.lane, f"{OURS}h", n_bytes], [CHUNK, c.lane, bytes(n_bytes + 1)])
        while (message := c.receive()).tag == BYTE_CREDIT:
            pass
        expect(message.tag == raw.ERROR and message.code == raw.PROTOCOL_VIOLATION, f"{message}")
        c.expect_close()


def check_interrupt_saves(address):
    with States(address) as c:
        c.lane += 1
        values = raw.SAMPLING | {"temperature": 0.0, "ignore_eos": True, "max_tokens": 2**20}
        c.send([GENERATE_ON, c.lane, ids(raw.PROMPT), [values[name] for name in raw.SAMPLING],
                0, 0, 0, "", 0, f"{OURS}i"])  # fmt: skip
        got = list(c.next().ids)
        c.send([INTERRUPT, c.lane])
        while (message := c.next()).tag == raw.TOKENS:
            got += message.ids
        expect(message.tag == END_ON and message.reason == raw.CANCELLED, f"{message}")
        expect(message.name == f"{OURS}i" and message.n_output == len(got), f"{message}")
        whole, _, _ = c.turn(raw.PROMPT, len(got) + 3)
        expect(got + c.turn([], 3, state=f"{OURS}i")[0] == whole, "not where it was interrupted")
        c.versions(DELETE, f"{OURS}i")


def check_without_the_feature_it_is_a_violation(address):
    with raw.Connection(address) as c:
        c.send([GET, 1, "a"])
        c.expect_close(raw.PROTOCOL_VIOLATION)


if __name__ == "__main__":
    for _name in [name for name in vars(raw) if name.startswith("check_")]:
        delattr(raw, _name)
    for _name in [name for name in globals() if name.startswith("check_")]:
        setattr(raw, _name, globals()[_name])
    sys.exit(raw.main())
