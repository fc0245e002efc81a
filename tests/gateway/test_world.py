"""The vocabulary of the RWKV World models."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.conftest import WORLD_TOKENS, world_file
from wkvm.gateway.text import (
    CorruptTokenizerError,
    Tokenizer,
    UnknownTokenError,
    load_tokenizer,
)

BYTES = [f"{byte + 1} {bytes((byte,))!r} 1" for byte in range(256)]


def test_ids_stand_for_the_bytes_of_their_lines(world: Tokenizer) -> None:
    assert world.vocab_size == len(WORLD_TOKENS) + 1
    assert [world.token_bytes(i) for i in range(1, world.vocab_size)] == WORLD_TOKENS


def test_the_longest_token_wins(world: Tokenizer) -> None:
    assert [world.token_bytes(i) for i in world.encode(" them")] == [b" the", b"m"]


def test_a_longer_token_that_does_not_fit_is_passed_over(world: Tokenizer) -> None:
    assert [world.token_bytes(i) for i in world.encode("abcabcd")] == [b"ab", b"c", b"abcd"]


def test_the_end_of_the_text_cuts_no_token_short(world: Tokenizer) -> None:
    assert [world.token_bytes(i) for i in world.encode("abc")] == [b"ab", b"c"]


@given(text=st.text(alphabet=st.sampled_from("abcd the\nUser한국🐭'\\\u2028x")) | st.text())
def test_text_survives_encoding_and_decoding(world: Tokenizer, text: str) -> None:
    assert world.decode(world.encode(text)) == text


def test_id_0_ends_a_document_and_has_no_bytes(world: Tokenizer) -> None:
    assert world.special_ids == {0}
    assert world.token_bytes(0) == b""
    assert 0 not in world.encode("<|endoftext|>", special=True)


@pytest.mark.parametrize("token_id", [-1, len(WORLD_TOKENS) + 1, 65535])
def test_an_id_that_has_no_line_is_a_typed_error(world: Tokenizer, token_id: int) -> None:
    with pytest.raises(UnknownTokenError):
        world.token_bytes(token_id)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("257 'ab' 3", "2 bytes, the line says 3"),
        ("1 'ab' 2", "id 1 again"),
        ("257 'a' 1", "same bytes"),
        ("0 'ab' 2", r"not in \[1"),
        ("65536 'ab' 2", r"not in \[1"),
        ("257 '' 0", "0 bytes"),
        ("257 ab 2", "quoted literal"),
        ("257 'ab'", "quoted literal"),
        ("257 'a' 'b' 2", "quoted literal"),
        ("257 'a'+'b' 2", "quoted literal"),
        ("257 __import__('os').getcwd() 2", "quoted literal"),
        ("257 f'{1}' 1", "quoted literal"),
        ("257 ('ab') 2", "quoted literal"),
        (r"257 '\N{SPACE}b' 2", "quoted literal"),
        (r"257 '\ud800' 3", "surrogates"),
        (r"257 '\U00110000' 4", "not one literal"),
        ("257 b'é' 2", "ascii"),
        ("", "quoted literal"),
        ("257 '" + "a" * 5000 + "' 5000", "longer than"),
    ],
)
def test_a_wrong_line_is_a_typed_error(tmp_path: Path, line: str, why: str) -> None:
    path = world_file(tmp_path, [*BYTES, line, "300 'zz' 2"])
    with pytest.raises(CorruptTokenizerError, match=why):
        load_tokenizer(path)


def test_a_missing_byte_is_a_typed_error(tmp_path: Path) -> None:
    path = world_file(tmp_path, BYTES[:-1])
    with pytest.raises(CorruptTokenizerError, match="0xff"):
        load_tokenizer(path)


def test_an_empty_file_is_a_typed_error(tmp_path: Path) -> None:
    path = world_file(tmp_path, [])
    with pytest.raises(CorruptTokenizerError):
        load_tokenizer(path)


def test_agrees_with_the_published_vocabulary_and_its_encoder() -> None:
    found = importlib.util.find_spec("rwkv")
    if found is None or found.origin is None:
        pytest.skip("the rwkv package is not installed")
    path = Path(found.origin).parent / "rwkv_vocab_v20230424.txt"
    spec = importlib.util.spec_from_file_location(
        "rwkv_tokenizer", path.parent / "rwkv_tokenizer.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = module.TRIE_TOKENIZER(str(path))
    ours = load_tokenizer(path)
    assert ours.vocab_size == 65530
    assert {i: ours.token_bytes(i) for i in range(1, 65530)} == theirs.idx2token
    text = "User: 안녕하세요 🐭🦊!\r\n\r\n\tif x == 'it\\'s':\n        return \u2028 1e-5\n" * 3
    assert ours.encode(text) == theirs.encode(text)
