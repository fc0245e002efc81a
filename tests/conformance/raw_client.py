#!/usr/bin/env python3
"""A raw client for the wkvm binary protocol, version 1, that checks a running server.

It was written from the protocol document (protocol.md) alone: nothing of the server's code, of its
client libraries or of its other documents was read. It needs only the Python standard library; the
part of MessagePack that the protocol uses is below.

    python3 raw_client.py unix:///tmp/wkvm.sock
    python3 raw_client.py tcp://127.0.0.1:8001

It prints one line for each check, `ok NAME` or `FAILED NAME why`; the exit status is 0 iff all
passed.
"""

# ruff: noqa: B023, B905, N818, SIM905
# mypy: ignore-errors

import argparse
import socket
import struct
import sys
import time
from urllib.parse import urlsplit

TIMEOUT_S = 60.0  # for any one thing that is waited for
PROMPT = [825, 699, 15, 262, 489, 561, 492, 976]

HELLO, HELLO_OK, PING, PONG, GO_AWAY, ERROR = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
GENERATE, CANCEL, CREDIT = 0x10, 0x11, 0x12
TOKENS, LOGPROBS, END, FAILED = 0x18, 0x19, 0x1A, 0x1B
STATS, STATS_REPLY = 0x40, 0x41
STOP, LENGTH, CANCELLED = 1, 2, 3  # reasons of an End
PROTOCOL_VIOLATION, FRAME_TOO_LARGE, UNSUPPORTED_VERSION = 100, 101, 102
INVALID_PARAMETER, TOKEN_OUT_OF_RANGE, EMPTY_PROMPT = 200, 201, 202

# What a server may send: the fields in order, `name:type`, and `name:type=` where there is a
# default.
FIELDS = {
    HELLO_OK: "version:count features:list max_frame_bytes:count max_lanes:count "
    "ping_interval_ms:count server:text model:text model_digest:text layout_fingerprint:text "
    "tokenizer_digest:text vocab_size:count eos_ids:ids n_slots:count max_model_len:count",
    PING: "nonce:count=",
    PONG: "nonce:count=",
    GO_AWAY: "message:text= retry_after_ms:count=",
    ERROR: "code:count retryable:bool message:text",
    TOKENS: "lanes:ids ids:ids choices:ids= counts:ids=",
    LOGPROBS: "request_id:count choice:count of_prompt:bool first:count n_top:count "
    "ids:ids logprobs:floats ranks:ids top_ids:ids top_logprobs:floats",
    END: "request_id:count choice:count reason:count stop_id:count_or_nil n_prompt:count "
    "n_output:count queue_us:count first_token_us:count total_us:count",
    FAILED: "request_id:count code:count retryable:bool message:text "
    "field:text= retry_after_ms:count=",
    STATS_REPLY: "request_id:count values:map",
}
TYPES = {"count": (int,), "count_or_nil": (int, type(None)), "bool": (bool,), "text": (str,),
         "list": (list,), "map": (dict,), "ids": (bytes,), "floats": (bytes,)}  # fmt: skip
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalty_decay": 1.0,
            "bias_ids": b"", "bias_values": b"", "allowed_ids": None, "stop_ids": b"",
            "ignore_eos": False, "min_tokens": 0, "max_tokens": 256, "logprobs": None,
            "prompt_logprobs": None, "seed": None, "n": 1}  # fmt: skip
COUNTERS = """n_slots n_free_slots n_queued n_running n_paused n_completed_remembered n_connections
    n_lanes draining requests_total stopped_total length_total cancelled_total timed_out_total
    finished_error_total prompt_tokens_total output_tokens_total steps_total""".split()


class Violation(Exception):
    """The server sent something that the document does not allow."""


class Closed(Exception):
    """The stream ended between two frames."""


# -- MessagePack -------------------------------------------------------------------------


def pack(value):
    """One value as MessagePack, in the shortest encoding."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if -32 <= value < 128:
            return bytes([value & 0xFF])
        size = next(s for s in range(4) if -(1 << (8 << s) - 1) <= value < (1 << (8 << s)))
        form = ">" + "BHIQbhiq"[size + 4 * (value < 0)]
        return bytes([(0xD0 if value < 0 else 0xCC) + size]) + struct.pack(form, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        data = value.encode()
        return head(len(data), 0xA0, 32, {">BB": 0xD9, ">BH": 0xDA, ">BI": 0xDB}) + data
    if isinstance(value, bytes):
        return head(len(value), 0, 0, {">BB": 0xC4, ">BH": 0xC5, ">BI": 0xC6}) + value
    return head(len(value), 0x90, 16, {">BH": 0xDC, ">BI": 0xDD}) + b"".join(map(pack, value))


def head(length, fix_code, fix_limit, codes):
    if length < fix_limit:
        return bytes([fix_code | length])
    form = next(form for form in codes if length < 1 << 8 * (struct.calcsize(form) - 1))
    return struct.pack(form, codes[form], length)


NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
           0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}  # fmt: skip
LENGTHS = {0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"), 0xD9: ("str", ">B"),
           0xDA: ("str", ">H"), 0xDB: ("str", ">I"), 0xDC: ("array", ">H"), 0xDD: ("array", ">I"),
           0xDE: ("map", ">H"), 0xDF: ("map", ">I")}  # fmt: skip


def unpack(data, at=0):
    """The value of `data` at `at`, and where it ends."""

    def number(form):
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack(form, data[at - struct.calcsize(form) : at])[0]

    code = number(">B")
    if code < 0x80 or code >= 0xE0:
        return (code if code < 0x80 else code - 0x100), at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if code in NUMBERS:
        return number(NUMBERS[code]), at
    if code < 0xC0:
        kind = "map" if code < 0x90 else "array" if code < 0xA0 else "str"
        length = code & (0x1F if kind == "str" else 0x0F)
    elif code in LENGTHS:
        kind, form = LENGTHS[code]
        length = number(form)
    else:
        raise Violation(f"MessagePack code {code:#x} has no place in this protocol")
    if kind in ("bin", "str"):
        raw = number(f"{length}s")
        return (raw.decode() if kind == "str" else raw), at
    values = []
    for _ in range(length * (2 if kind == "map" else 1)):
        value, at = unpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2])) if kind == "map" else values), at


# -- Messages ----------------------------------------------------------------------------


class Message:
    """A message of the server: its tag, and its fields as attributes."""

    def __init__(self, payload):
        array, end = unpack(payload)
        if end != len(payload) or type(array) is not list or not array or array[0] not in FIELDS:
            raise Violation(f"not a message of a server: {payload[:40].hex()}")
        self.tag, fields = array[0], FIELDS[array[0]].split()
        if len(array) - 1 > len(fields):
            raise Violation(f"message {self.tag:#x} has {len(array) - 1} fields")
        for i, (name, kind) in enumerate((field.split(":") for field in fields), 1):
            types = TYPES[kind.rstrip("=")]
            if i >= len(array) and not kind.endswith("="):
                raise Violation(f"message {self.tag:#x} lacks {name}")
            value = (
                array[i] if i < len(array) else types[0]()
            )  # 0, "" or empty: all defaults are such
            if type(value) not in types or (type(value) is int and value < 0):
                raise Violation(f"{name} of message {self.tag:#x} is {value!r}")
            if types == (bytes,):
                form = "<I" if kind.startswith("ids") else "<f"
                value = [word for (word,) in struct.iter_unpack(form, value)]
            setattr(self, name, value)

    def __str__(self):
        return f"tag {self.tag:#x}, " + ", ".join(
            f"{k}={v!r}" for k, v in vars(self).items() if k != "tag"
        )


def ids(values):
    return struct.pack(f"<{len(values)}I", *values)


def generate(request_id, prompt=PROMPT, credit=0, **sampling):
    """A Generate, greedy and past eos unless `sampling` says otherwise."""
    sampling = SAMPLING | {"temperature": 0.0, "ignore_eos": True} | sampling
    return [GENERATE, request_id, ids(prompt), [sampling[name] for name in SAMPLING], credit]


# -- A connection ------------------------------------------------------------------------


class Lane:
    """What has come for one Generate."""

    def __init__(self, n):
        self.ids = [[] for _ in range(n)]  # of each choice
        # by choice and whether of the prompt:
        # (position, id, logprob, rank, [(top id, its logprob)])
        self.logprobs = {
            (choice, of_prompt): [] for choice in range(n) for of_prompt in (False, True)
        }
        self.ends = {}
        self.failed = None

    @property
    def closed(self):
        return self.failed is not None or len(self.ends) == len(self.ids)


class Connection:
    def __init__(self, address, hello=(HELLO, "wkvm", 1, 1, [], 1 << 20, "", "raw_client.py")):
        url = urlsplit(address)
        if url.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(url.path)
        else:
            self.socket = socket.create_connection((url.hostname, url.port), timeout=TIMEOUT_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limit = 65_536  # until HelloOk
        self.buffer = bytearray()
        self.lanes = {}  # kept after their end
        self.pongs = []
        self.stats = {}
        self.order = []  # the lane of each entry of a Tokens, and ("end", lane)
        if hello:
            self.send(hello)
            self.hello_ok = self.receive()
            expect(self.hello_ok.tag == HELLO_OK, f"no HelloOk: {self.hello_ok}")
            self.limit = self.hello_ok.max_frame_bytes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *messages):
        for message in messages:
            if message[0] == GENERATE:
                self.lanes[message[1]] = Lane(message[3][-1])
        payloads = [pack(message) for message in messages]
        self.socket.settimeout(TIMEOUT_S)
        self.socket.sendall(
            b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)
        )

    def exactly(self, n, deadline):
        while len(self.buffer) < n:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.socket.recv(65_536)
            if not data:
                raise (
                    Violation("the stream ended inside a frame")
                    if self.buffer
                    else Closed("by the server")
                )
            self.buffer += data
        data = bytes(self.buffer[:n])
        del self.buffer[:n]
        return data

    def receive(self):
        """The next message, whatever it is."""
        deadline = time.monotonic() + TIMEOUT_S
        (length,) = struct.unpack("<I", self.exactly(4, deadline))
        if not 0 < length <= self.limit:
            raise Violation(f"a frame of {length} bytes")
        return Message(self.exactly(length, deadline))

    def take_until(self, done):
        """Receives messages, and does what they say, until `done()`."""
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            expect(time.monotonic() < deadline, "waited for too long")
            self.take(self.receive())

    def take(self, m):
        if m.tag == PING:
            self.send([PONG, m.nonce])
        elif m.tag == PONG:
            self.pongs.append(m.nonce)
        elif m.tag == TOKENS:
            choices = m.choices or [0] * len(m.lanes)
            counts = m.counts or [1] * len(m.lanes)
            if not len(m.lanes) == len(choices) == len(counts) or sum(counts) != len(m.ids):
                raise Violation(f"lengths that contradict each other: {m}")
            at = 0
            for request_id, choice, count in zip(m.lanes, choices, counts):
                self.open_lane(request_id, choice).ids[choice] += m.ids[at : at + count]
                self.order.append(request_id)
                at += count
        elif m.tag == LOGPROBS:
            n = len(m.ids)
            lengths = [len(x) for x in (m.logprobs, m.ranks, m.top_ids, m.top_logprobs)]
            if lengths != [n, n, n * m.n_top, n * m.n_top]:
                raise Violation(f"lengths that contradict each other: {m}")
            for i in range(n):
                part = slice(i * m.n_top, (i + 1) * m.n_top)
                top = list(zip(m.top_ids[part], m.top_logprobs[part]))
                entry = (m.first + i, m.ids[i], m.logprobs[i], m.ranks[i], top)
                self.open_lane(m.request_id, m.choice).logprobs[m.choice, m.of_prompt].append(entry)
        elif m.tag == END:
            lane = self.open_lane(m.request_id, m.choice)
            if m.n_output != len(lane.ids[m.choice]) or not 1 <= m.reason <= 4:
                raise Violation(f"an End that does not fit: {m}")
            lane.ends[m.choice] = m
            self.order.append(("end", m.request_id))
        elif m.tag == FAILED:
            self.open_lane(m.request_id).failed = m
        elif m.tag == STATS_REPLY:
            self.stats[m.request_id] = m.values
        elif m.tag != GO_AWAY:  # which may come at any time; these checks open no lanes later
            raise Violation(f"unexpected: {m}")

    def open_lane(self, request_id, choice=None):
        lane = self.lanes.get(request_id)
        if (
            lane is None
            or lane.closed
            or (choice is not None and (choice >= len(lane.ids) or choice in lane.ends))
        ):
            raise Violation(f"lane {request_id}, choice {choice} is not open")
        return lane

    def ping(self, nonce):
        """A barrier: all that was queued before the Pong has been taken when this returns."""
        self.send([PING, nonce])
        self.take_until(lambda: nonce in self.pongs)

    def run(self, request):
        """One Generate to its end."""
        self.send(request)
        lane = self.lanes[request[1]]
        self.take_until(lambda: lane.closed)
        return lane

    def expect_close(self, code=None):
        """The end of the stream, with the Error `code` before it."""
        if code is not None:
            message = self.receive()
            expect(message.tag == ERROR and message.code == code, f"no Error {code}: {message}")
        try:
            message = self.receive()
        except Closed:
            return
        raise Violation(f"not closed, but {message}")


# -- The checks --------------------------------------------------------------------------


def expect(condition, why):
    if not condition:
        raise AssertionError(why)


def expect_ends(lane, reason, n_output):
    expect(lane.failed is None, f"Failed: {lane.failed}")
    for end in lane.ends.values():
        fits = (end.reason, end.n_output, end.stop_id, end.n_prompt) == (
            reason,
            n_output,
            None,
            len(PROMPT),
        )
        expect(fits, f"not reason {reason} and {n_output} ids: {end}")


def check_codec(_):
    """The conversation that the document spells out, and each size of encoding."""
    expect(pack([HELLO, "wkvm", 1, 1]).hex() == "9401a4776b766d0101", "Hello")
    expect(
        pack([GENERATE, 7, ids([72, 105]), [0.0]]).hex()
        == "941007c408480000006900000091cb" + "00" * 8,
        "Generate",
    )
    end = Message(bytes.fromhex("9a1a070001000201cc96cd0834cd0bb8"))
    expect(
        (end.reason, end.stop_id, end.n_prompt, end.n_output, end.total_us)
        == (STOP, 0, 2, 1, 3000),
        "End",
    )
    integers = [s * 2**k - d for k in (5, 7, 8, 15, 16, 31, 32) for s in (1, -1) for d in (0, 1)]
    strings = ["x" * n for n in (0, 31, 32, 256, 65536)] + ["\u20ac", b"", b"x" * 255, b"x" * 256]
    for value in (*integers, *strings, -(2**63), 2**64 - 1, 1.5, None, True, [0] * 15, [0] * 16):
        expect(unpack(pack(value)) == (value, len(pack(value))), f"{value!r:.40}")


def check_handshake(address):
    with Connection(address) as c:
        print(f"   HelloOk: {c.hello_ok}")
        expect(
            c.hello_ok.version == 1 and c.hello_ok.features == [],
            "version or features that were not offered",
        )
        expect(65_536 <= c.limit <= 1 << 20, "max_frame_bytes out of range")
    with Connection(address, hello=(HELLO, "wkvm", 1, 1)):  # what has a default is left out
        pass


def check_greedy(address):
    with Connection(address) as c:
        lane = c.run(generate(1, max_tokens=16))
        print(f"   ids: {lane.ids[0]}")
        expect_ends(lane, LENGTH, 16)
        expect(max(lane.ids[0]) < c.hello_ok.vocab_size, "an id beyond the vocabulary")


def check_two_lanes(address):
    with Connection(address) as c:
        prompts = {70: PROMPT, 5: PROMPT[::-1]}
        alone = {i: c.run(generate(i, p, max_tokens=16)).ids for i, p in prompts.items()}
        again = {i: c.run(generate(i, p, max_tokens=16)).ids for i, p in prompts.items()}
        expect(alone == again, f"not the same twice: {alone}, {again}")
        c.order.clear()
        c.send(*(generate(i, p, max_tokens=16) for i, p in prompts.items()))
        c.take_until(lambda: all(c.lanes[i].closed for i in prompts))
        first_end = min(c.order.index(("end", i)) for i in prompts)
        expect(set(c.order[:first_end]) == set(prompts), f"no interleaving: {c.order}")
        expect(all(c.lanes[i].ids == alone[i] for i in prompts), f"not as alone: {alone}")


def check_credit(address):
    with Connection(address) as c:
        c.send(generate(1, credit=4, max_tokens=1000))
        lane = c.lanes[1]
        for n in (4, 7):
            c.take_until(lambda: len(lane.ids[0]) >= n)
            for i in range(5):  # a Pong proves only what was queued before it: leave time for more
                time.sleep(0.05)
                c.ping(100 * n + i)
            expect(
                len(lane.ids[0]) == n and not lane.closed,
                f"{len(lane.ids[0])} ids for a credit of {n}",
            )
            c.send([CREDIT, 1, 3] if n == 4 else [CANCEL, 1])
        c.take_until(lambda: lane.closed)
        expect_ends(lane, CANCELLED, 7)
        c.send([CANCEL, 1], [CREDIT, 1, 3])  # ignored
        expect(c.run(generate(2, max_tokens=7)).ids == lane.ids, "other ids than without credit")


def check_logprobs(address):
    with Connection(address) as c:
        lane = c.run(generate(1, max_tokens=8, logprobs=2, prompt_logprobs=1))
        expect_ends(lane, LENGTH, 8)
        prompt, output = lane.logprobs[0, True], lane.logprobs[0, False]
        expect(
            [p[:2] for p in prompt] == list(enumerate(PROMPT))[1:],
            f"positions of the prompt: {prompt}",
        )
        expect(
            [p[:2] for p in output] == list(enumerate(lane.ids[0])),
            f"positions of the output: {output}",
        )
        for n_top, positions in ((1, prompt), (2, output)):
            for position in positions:
                _, token, logprob, rank, top = position
                expect(len(top) == n_top and logprob <= 0, f"{position}")
                expect(
                    top == sorted(top, key=lambda pair: (-pair[1], pair[0])), f"order: {position}"
                )
                expect((rank == 1) == (top[0] == (token, logprob)), f"rank: {position}")
        expect(all(p[3] == 1 for p in output), f"greedy did not take the best: {output}")


def check_choices(address):
    with Connection(address) as c:
        request = generate(1, temperature=1.0, max_tokens=12, seed=1234, n=3)
        first, second = c.run(request), c.run(request)
        expect(len(first.ends) == 3, f"Failed: {first.failed}")
        expect_ends(first, LENGTH, 12)
        expect(first.ids == second.ids, f"not the same twice: {first.ids}, {second.ids}")
        expect(len(set(map(tuple, first.ids))) > 1, "all choices are the same")


def check_refusals(address):
    with Connection(address) as c:
        for request, code, field in (
            (generate(1, [5, c.hello_ok.vocab_size]), TOKEN_OUT_OF_RANGE, "prompt"),
            (generate(1, []), EMPTY_PROMPT, "prompt"),
            (generate(1, top_p=float("nan")), INVALID_PARAMETER, "top_p"),
            (generate(1, n=65), INVALID_PARAMETER, "n"),
        ):
            failed = c.run(request).failed
            expect(failed is not None, f"not refused: {field}")
            got = (failed.code, failed.field, failed.retryable)
            expect(got == (code, field, False), f"not {code} of {field}: {failed}")
        expect_ends(c.run(generate(1, max_tokens=0)), LENGTH, 0)
        expect_ends(c.run(generate(1, max_tokens=2)), LENGTH, 2)


def check_stats_and_ping(address):
    with Connection(address) as c:
        c.send([STATS, 9])
        c.take_until(lambda: 9 in c.stats)
        missing = [name for name in COUNTERS if type(c.stats[9].get(name)) is not int]
        expect(not missing, f"no {missing} in {c.stats[9]}")
        expect(c.stats[9]["n_slots"] == c.hello_ok.n_slots, f"n_slots: {c.stats[9]}")
        c.send([PING, 5], [PING, 2**63 - 1], [PING])  # the nonce that is left out is 0
        c.take_until(lambda: len(c.pongs) == 3)
        expect(c.pongs == [5, 2**63 - 1, 0], f"Pongs {c.pongs}")


def check_violations(address):
    with Connection(address) as c:
        c.send([0x7F, 1])
        c.expect_close(PROTOCOL_VIOLATION)
    with Connection(address) as c:
        c.socket.sendall(struct.pack("<I", c.limit + 1))
        c.expect_close(FRAME_TOO_LARGE)
    with Connection(address, hello=None) as c:
        c.socket.sendall(struct.pack("<I", c.limit + 1))
        c.expect_close(FRAME_TOO_LARGE)
    with Connection(address, hello=None) as c:
        c.send([HELLO, "wkvm", 7, 9])
        c.expect_close(UNSUPPORTED_VERSION)


def check_go_away(address):
    with Connection(address) as c:
        c.send(generate(1, credit=2, max_tokens=6), [GO_AWAY, "done"])
        c.ping(1)
        expect(not c.lanes[1].closed, "the open lane did not go on")
        c.send([CREDIT, 1, 4])
        c.take_until(lambda: c.lanes[1].closed)
        expect_ends(c.lanes[1], LENGTH, 6)
        c.expect_close()
    with Connection(address) as c:
        c.send([GO_AWAY])
        c.expect_close()


def main():
    parser = argparse.ArgumentParser(description="Checks a wkvm server over its binary protocol.")
    parser.add_argument("address", help="unix:///path or tcp://host:port")
    address = parser.parse_args().address
    if urlsplit(address).scheme not in ("unix", "tcp"):
        parser.error(f"not an address: {address}")
    n_failed = 0
    for name, check in [
        (k.removeprefix("check_"), v) for k, v in globals().items() if k.startswith("check_")
    ]:
        try:
            check(address)
            print(f"ok {name}", flush=True)
        except Exception as error:  # whatever it is, this check has failed and the others are run
            n_failed += 1
            print(f"FAILED {name} {type(error).__name__}: {error}", flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
