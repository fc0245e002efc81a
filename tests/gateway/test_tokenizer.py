"""Tokenizers: text to ids and back, ids to bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.conftest import BUNDLED
from wkvm.gateway.text import (
    ByteTokenizer,
    CorruptTokenizerError,
    Tokenizer,
    TokenizerNotFoundError,
    UnknownTokenError,
    UnsupportedTokenizerError,
    load_tokenizer,
    tokenizer_digest,
)

END = 1


@given(text=st.text())
def test_text_survives_encoding_and_decoding(bundled: Tokenizer, text: str) -> None:
    assert bundled.decode(bundled.encode(text)) == text


@given(text=st.text())
def test_text_survives_bytes_as_ids(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encoding_is_that_of_the_library(bundled: Tokenizer) -> None:
    library = tokenizers.Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    text = "Once upon a time, 3 mice found a café.\n\nUser: 안녕 🐭"
    assert bundled.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_bytes_of_ids_decode_to_what_the_library_decodes(bundled: Tokenizer) -> None:
    library = tokenizers.Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    for start in range(0, bundled.vocab_size, 64):
        ids = list(range(start, start + 64))
        assert bundled.decode(ids, skip_special=False) == library.decode(
            ids, skip_special_tokens=False
        )


def test_every_byte_has_an_id(bundled: Tokenizer) -> None:
    tokens = {bundled.token_bytes(token_id) for token_id in range(bundled.vocab_size)}
    assert {bytes((byte,)) for byte in range(256)} <= tokens


def test_special_tokens_in_text_are_plain_text(bundled: Tokenizer) -> None:
    ids = bundled.encode("hi<|end|>")
    assert END not in ids
    assert bundled.decode(ids) == "hi<|end|>"


def test_special_tokens_are_special_when_asked_for(bundled: Tokenizer) -> None:
    assert bundled.encode("hi<|end|>", special=True)[-1] == END


def test_asking_for_special_tokens_once_does_not_stick(bundled: Tokenizer) -> None:
    bundled.encode("<|end|>", special=True)
    assert END not in bundled.encode("<|end|>")


def test_special_tokens_are_skipped_or_named(bundled: Tokenizer) -> None:
    ids = [*bundled.encode("hi"), END]
    assert bundled.decode(ids) == "hi"
    assert bundled.decode(ids, skip_special=False) == "hi<|end|>"


@pytest.mark.parametrize("token_id", [-1, 4096, 2**31])
def test_an_id_out_of_range_is_a_typed_error(bundled: Tokenizer, token_id: int) -> None:
    with pytest.raises(UnknownTokenError) as caught:
        bundled.token_bytes(token_id)
    assert (caught.value.token_id, caught.value.vocab_size) == (token_id, 4096)


@pytest.mark.parametrize("token_id", [-1, 256])
def test_an_id_that_is_no_byte_is_a_typed_error(token_id: int) -> None:
    with pytest.raises(UnknownTokenError):
        ByteTokenizer().token_bytes(token_id)


def test_lone_surrogates_become_replacement_characters(bundled: Tokenizer) -> None:
    assert bundled.decode(bundled.encode("a\ud800b")) == "a\ufffdb"


def test_digest_is_that_of_the_file(bundled: Tokenizer) -> None:
    digest = hashlib.sha256((BUNDLED / "tokenizer.json").read_bytes()).hexdigest()
    assert bundled.digest == tokenizer_digest(BUNDLED) == digest


def test_a_model_file_is_searched_for_a_tokenizer_beside_it(bundled: Tokenizer) -> None:
    beside = load_tokenizer(BUNDLED / "model-00001-of-00002.safetensors")
    assert beside.digest == bundled.digest


def test_a_folder_without_tokenizer_has_none(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match="no tokenizer file"):
        load_tokenizer(tmp_path)
    assert tokenizer_digest(tmp_path) == ""


def test_a_tokenizer_in_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").touch()
    with pytest.raises(TokenizerNotFoundError, match=r"tiktoken\.model is not read"):
        load_tokenizer(tmp_path)


def test_no_such_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match="no such path"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": {}}', b"\xff\xfe"])
def test_a_damaged_file_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CorruptTokenizerError):
        load_tokenizer(tmp_path)


def test_a_truncated_file_is_a_typed_error(tmp_path: Path) -> None:
    whole = (BUNDLED / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptTokenizerError):
        load_tokenizer(tmp_path)


def write_changed(folder: Path, **changes: object) -> None:
    """The bundled tokenizer with some of its parts replaced."""
    whole = json.loads((BUNDLED / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(whole | changes))


def test_text_is_neither_cut_nor_padded_whatever_the_file_says(
    bundled: Tokenizer, tmp_path: Path
) -> None:
    write_changed(
        tmp_path,
        truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 100},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        },
    )
    text = "Once upon a time there was a fox."
    for special in (False, True):
        assert load_tokenizer(tmp_path).encode(text, special=special) == bundled.encode(text)


def test_a_file_that_makes_the_library_panic_is_a_typed_error(tmp_path: Path) -> None:
    write_changed(tmp_path, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(CorruptTokenizerError, match="not a tokenizer"):
        load_tokenizer(tmp_path)


def test_text_that_a_file_has_no_ids_for_is_a_typed_error(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    write_changed(tmp_path, model=model, added_tokens=[])
    with pytest.raises(CorruptTokenizerError, match="cannot encode this text"):
        load_tokenizer(tmp_path).encode("b")


def test_ids_that_have_no_bytes_are_refused(tmp_path: Path) -> None:
    write_tokenizer(
        tmp_path, {"a": 0}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}
    )
    with pytest.raises(UnsupportedTokenizerError):
        load_tokenizer(tmp_path)


def test_sentencepiece_spelling_gives_bytes(tmp_path: Path) -> None:
    vocab = {"<0xE2>": 0, "\u2581the": 1, "<0x0A>": 2, "\u2581": 3}
    write_tokenizer(tmp_path, vocab, decoder={"type": "ByteFallback"})
    tokenizer = load_tokenizer(tmp_path)
    assert [tokenizer.token_bytes(i) for i in range(4)] == [b"\xe2", b" the", b"\n", b" "]


def test_a_hole_in_the_vocabulary_is_a_typed_error(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, {"a": 0, "b": 5}, decoder={"type": "ByteLevel"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 6
    with pytest.raises(UnknownTokenError):
        tokenizer.token_bytes(3)


def test_a_folder_can_declare_that_ids_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByteTokenizer"}')
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.digest == tokenizer_digest(tmp_path) != ""


def write_tokenizer(folder: Path, vocab: dict[str, int], decoder: dict[str, Any]) -> None:
    """Write a ``tokenizer.json`` without merges."""
    filler = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": decoder | (filler if decoder["type"] == "ByteLevel" else {}),
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))


def added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    """A token as ``added_tokens`` has it."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def test_added_tokens_that_are_not_special_are_text(bundled: Tokenizer, tmp_path: Path) -> None:
    """Such as GPT-NeoX's runs of spaces, and the tags of models that think."""
    first = bundled.vocab_size
    tokens = [added(first, "   ", special=False), added(first + 1, "<think>", special=False)]
    specials = [added(i, name, special=True) for i, name in bundled.specials.items()]
    write_changed(tmp_path, added_tokens=[*specials, *tokens])
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("<think>a   b")
    assert [i for i in ids if i >= first] == [first + 1, first]
    assert tokenizer.decode(ids) == "<think>a   b"
    assert tokenizer.specials == bundled.specials


def test_a_long_text_has_the_ids_of_its_words(bundled: Tokenizer) -> None:
    for text in (" once upon a time", "<|end|>\n한"):
        for special in (False, True):
            ids = bundled.encode(text, special=special)
            assert bundled.encode(text * 2000, special=special) == ids * 2000
