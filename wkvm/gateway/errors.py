"""The exceptions of the gateway. Raise the leaf, catch the branch.

SettingError             a setting of the gateway is not allowed

TextError
├── TokenizerError           a tokenizer cannot be loaded
│   ├── TokenizerNotFoundError   there is none at that path
│   ├── CorruptTokenizerError    its file contradicts itself or ends early
│   └── UnsupportedTokenizerError  a kind that wkvm cannot turn into bytes
├── UnknownTokenError        an id that the tokenizer does not have
└── TemplateError            a chat template is wrong, or refused the messages
"""


class SettingError(Exception):
    """A setting of the gateway is not allowed, or cannot be had on this machine.

    Attributes:
        setting: its name on the command line, without the dashes.
    """

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(f"{setting}: {why}")
        self.setting = setting
        self.why = why


class TextError(Exception):
    """Base of all errors of the text layer."""


class TokenizerError(TextError):
    """A tokenizer cannot be loaded."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class TokenizerNotFoundError(TokenizerError):
    """There is no tokenizer at that path."""


class CorruptTokenizerError(TokenizerError):
    """A tokenizer's file contradicts itself, or ends early."""


class UnsupportedTokenizerError(TokenizerError):
    """The file is whole, but of a kind whose ids wkvm cannot turn into bytes."""


class UnknownTokenError(TextError):
    """An id that the tokenizer does not have."""

    def __init__(self, token_id: int, vocab_size: int) -> None:
        super().__init__(f"the tokenizer has no id {token_id}; its ids are below {vocab_size}")
        self.token_id = token_id
        self.vocab_size = vocab_size


class TemplateError(TextError):
    """A chat template does not compile, refused the messages, or failed on them."""
