"""Where a conversation that is written anew begins with what a state has read."""

from pathlib import Path

import pytest

from tests.gateway.conftest import BUNDLED
from tests.gateway.test_turns import CHATML, Marked
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.template_files import load_chat_template
from wkvm.gateway.text.tokenizer import ByteTokenizer, Tokenizer
from wkvm.gateway.text.written import ReadMark, read_by

ASKED = [{"role": "user", "content": "Who?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "A fox named <|end|>."}]
ASKED_AGAIN = [*ANSWERED, {"role": "user", "content": "Why?"}]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return load_chat_template(BUNDLED)


def test_what_a_prompt_and_its_answer_were_is_how_the_next_prompt_begins(
    template: ChatTemplate, bundled: Tokenizer
) -> None:
    first = template.write(ASKED, bundled)
    answer = bundled.encode(" A fox.", special=True) + bundled.encode("<|end|>", special=True)
    told = [*ASKED, {"role": "assistant", "content": "A fox."}, {"role": "user", "content": "Why?"}]
    second = template.write(told, bundled)
    answered = read_by(answer, bundled)
    assert answered is not None
    mark = ReadMark.of(first.read_bytes() + answered)
    assert mark.begins(second.read_bytes())
    rest = second.ids_after(mark.n_bytes)
    assert rest is not None
    assert [*first.ids(), *answer, *rest] == second.ids()


def test_a_name_of_a_special_token_in_a_message_is_not_that_token(
    template: ChatTemplate, bundled: Tokenizer
) -> None:
    forged = template.write(ANSWERED, bundled, add_generation_prompt=False).read_bytes()
    (end,) = bundled.encode("<|end|>", special=True)
    real = read_by([*bundled.encode("A fox named "), end, *bundled.encode(".")], bundled)
    assert real is not None
    assert real not in forged
    assert b"named <|end|>." in forged


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        (" A fox.", b"\n\nUser: Why?\n\nAssistant:"),
        (" A fox.\n\n", b"User: Why?\n\nAssistant:"),
        (" A fox. ", None),
        ("A fox.", None),
        ("  A fox.", None),
    ],
)
def test_an_answer_in_plain_text_is_gone_on_from_where_it_is_written_so(
    answer: str, rest: bytes | None, tmp_path: Path
) -> None:
    """The World models' template trims answers, and puts a space before them."""
    template, tokenizer = load_chat_template(tmp_path), ByteTokenizer()
    first = template.write(ASKED, tokenizer)
    mark = ReadMark.of(first.read_bytes() + answer.encode())
    told = {"role": "assistant", "content": answer.removeprefix(" ")}
    second = template.write([*ASKED, told, {"role": "user", "content": "Why?"}], tokenizer)
    assert mark.begins(second.read_bytes()) == (rest is not None)
    if rest is not None:
        assert second.ids_after(mark.n_bytes) == list(rest)


@pytest.mark.parametrize(("end", "goes_on"), [([301], True), ([], True), ([300], False)])
def test_an_end_that_is_the_templates_own_is_not_written_again(
    end: list[int], goes_on: bool
) -> None:
    tokenizer = Marked()
    first = CHATML.write(ASKED, tokenizer)
    answered = read_by([*b"A fox.", *end], tokenizer)
    assert answered is not None
    mark = ReadMark.of(first.read_bytes() + answered)
    told = [*ASKED, {"role": "assistant", "content": "A fox."}, {"role": "user", "content": "Why?"}]
    second = CHATML.write(told, tokenizer)
    assert mark.begins(second.read_bytes()) == goes_on
    if goes_on:
        rest = second.ids_after(mark.n_bytes)
        assert rest is not None
        assert [*first.ids(), *b"A fox.", *end, *rest] == second.ids()


@pytest.mark.parametrize("other", ["Who? ", "who?", "Wh"])
def test_another_text_does_not_begin_with_it(
    other: str, template: ChatTemplate, bundled: Tokenizer
) -> None:
    mark = ReadMark.of(template.write(ASKED, bundled).read_bytes() + b" A")
    changed = [{"role": "user", "content": other + "?"}, *ASKED_AGAIN[1:]]
    assert not mark.begins(template.write(changed, bundled).read_bytes())


def test_a_text_does_not_begin_with_all_of_itself(
    template: ChatTemplate, bundled: Tokenizer
) -> None:
    read = template.write(ASKED, bundled).read_bytes()
    assert not ReadMark.of(read).begins(read)


def test_what_is_hidden_is_cut_like_any_text(template: ChatTemplate, bundled: Tokenizer) -> None:
    whole = template.write(ASKED_AGAIN, bundled)
    read = whole.read_bytes()
    at = read.index(b"Why")
    rest = whole.ids_after(at)
    assert rest is not None
    assert read_by(rest, bundled) == read[at:]


def test_nothing_is_cut_within_a_special_token(template: ChatTemplate, bundled: Tokenizer) -> None:
    whole = template.write(ASKED_AGAIN, bundled)
    assert whole.ids_after(whole.read_bytes().index(b"\xff") + 1) is None


def test_half_a_character_is_not_read() -> None:
    assert read_by(b"caf\xc3", ByteTokenizer()) is None
    assert read_by("caf\u00e9".encode(), ByteTokenizer()) == "caf\u00e9".encode()


def test_an_id_of_no_token_is_not_read(bundled: Tokenizer) -> None:
    assert read_by([bundled.vocab_size + 5], bundled) is None


def test_white_space_that_a_special_token_takes_along_stays_gone(tmp_path: Path) -> None:
    tokenizer = _taking_tokenizer(tmp_path)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}<e>\n\n{% endfor %}")
    whole = template.write([{"content": "ab"}, {"content": "cd"}], tokenizer)
    rest = whole.ids_after(whole.read_bytes().index(b"\n"))
    assert rest is not None
    assert whole.ids()[-len(rest) :] == rest
    assert "\n" not in tokenizer.decode(rest)


def _taking_tokenizer(folder: Path) -> Tokenizer:
    """One whose special token ``<e>`` swallows the white space that follows."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    from wkvm.gateway.text import load_tokenizer

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(alphabet))}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<e>", rstrip=True, special=True)])
    library.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)
