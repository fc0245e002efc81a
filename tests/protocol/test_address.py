import pytest
from wkvm_protocol.address import Address, TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:8001", TcpAddress("127.0.0.1", 8001)),
        ("tcp://localhost:0", TcpAddress("localhost", 0)),
        ("tcp://my-host.example:65535", TcpAddress("my-host.example", 65535)),
        ("tcp://[::1]:8001", TcpAddress("::1", 8001)),
        ("tcp://[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1)),
        ("unix:///run/wkvm.sock", UnixAddress("/run/wkvm.sock")),
        ("unix:/run/wkvm.sock", UnixAddress("/run/wkvm.sock")),
        ("unix:///a b/ü:1", UnixAddress("/a b/ü:1")),
        ("unix:///" + "x" * 106, UnixAddress("/" + "x" * 106)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not an address"),
        ("127.0.0.1:8001", "is not an address"),
        ("http://127.0.0.1:8001", "is not an address"),
        ("TCP://127.0.0.1:8001", "is not an address"),
        ("tcp:127.0.0.1:8001", "is not an address"),
        ("tcp://127.0.0.1", "names no port"),
        ("tcp://::1:8001", "goes in brackets"),
        ("tcp://::", "names no port"),
        ("tcp://[::1]", "names no port|goes in brackets|is not a port"),
        ("tcp://[localhost]:1", "brackets are for IPv6"),
        ("tcp://:8001", "names no host"),
        ("tcp://a/b:1", "is not a host"),
        ("tcp://key@host:1", "is not a host"),
        ("tcp://a b:1", "is not a host"),
        ("tcp://host:1/", "is not a port"),
        ("tcp://host:65536", "is not a port"),
        ("tcp://host:-1", "is not a port"),
        ("tcp://host:+1", "is not a port"),
        ("tcp://host:", "is not a port"),
        ("tcp://host:\u0661", "is not a port"),
        ("tcp://host:" + "1" * 5000, "is not a port"),
        ("unix:", "an absolute path"),
        ("unix://", "an absolute path"),
        ("unix://relative", "an absolute path"),
        ("unix:relative", "an absolute path"),
        ("unix:///", "names no file"),
        ("unix:///dir/", "names no file"),
        ("unix:///a\0b", "NUL"),
        ("unix:///" + "x" * 107, "108 bytes"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_address(text)
