"""The exceptions of wkvm. Raise the leaf, catch the branch.

WkvmError
├── RequestError             the request is wrong; sending it again will not help
│   ├── InvalidParameterError    a field has a value that is not allowed
│   ├── TokenOutOfRangeError     an id that the vocabulary does not have
│   ├── EmptyPromptError         no ids to start from
│   └── PromptTooLongError       more ids than the server takes
├── CapacityError            no room now; the same request may succeed later
│   ├── OutOfSlotsError          fewer slots are free than were asked for
│   ├── QueueFullError           the waiting line has reached its bound
│   └── DrainingError            the engine finishes what it has and takes nothing new
├── ExecutionError           the request was good and could not be carried out
│   ├── NonFiniteError           its logits hold NaN or infinity
│   ├── StalledError             its client granted no credit for too long
│   └── StepFailedError          the forward pass raised
├── CheckpointError          a model cannot be loaded
│   ├── ModelNotFoundError       nothing at that path
│   ├── CorruptCheckpointError   the files contradict themselves or end early
│   └── UnsupportedModelError    a model that wkvm does not run
├── ConfigError              a setting, or a combination of settings, is not allowed
└── MissingExtraError        an optional part of wkvm is not installed
"""


class WkvmError(Exception):
    """Base of all errors that wkvm raises on purpose."""


class RequestError(WkvmError):
    """The request is wrong. Sending it again will not help."""


class InvalidParameterError(RequestError):
    """A field has a value that is not allowed."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class TokenOutOfRangeError(RequestError):
    """A field names an id that the vocabulary does not have."""

    def __init__(self, field: str, token_id: int, vocab_size: int) -> None:
        super().__init__(f"{field}: id {token_id} is not in [0, {vocab_size})")
        self.field = field
        self.token_id = token_id
        self.vocab_size = vocab_size


class EmptyPromptError(RequestError):
    """There is no id to start from."""

    def __init__(self) -> None:
        super().__init__("prompt: at least one token id is needed")


class PromptTooLongError(RequestError):
    """The prompt, or prompt and max_tokens together, exceed the server's limit."""

    def __init__(self, n_prompt: int, max_tokens: int, limit: int) -> None:
        # Clients of OpenAI's interface know the error by the first words.
        super().__init__(
            f"prompt: this model's maximum context length is {limit} tokens, which"
            f" {n_prompt} of the prompt and {max_tokens} of max_tokens exceed"
        )
        self.n_prompt = n_prompt
        self.max_tokens = max_tokens
        self.limit = limit


class CapacityError(WkvmError):
    """No room now. The request was good; retrying later may succeed."""


class OutOfSlotsError(CapacityError):
    """More slots were asked for than are free."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"wanted {wanted} slots, {free} free")
        self.wanted = wanted
        self.free = free


class QueueFullError(CapacityError):
    """As many requests, or ids of requests, of a tenant wait as may."""

    def __init__(self, limit: int, of: str) -> None:
        super().__init__(f"the queue holds at most {limit} {of} of a tenant; retry later")
        self.limit = limit
        self.of = of


class DrainingError(CapacityError):
    """The engine finishes what it has and takes nothing new."""

    def __init__(self) -> None:
        super().__init__("the server is draining; retry elsewhere or later")


class ExecutionError(WkvmError):
    """The request was good, and carrying it out failed."""


class NonFiniteError(ExecutionError):
    """The logits of one row hold NaN or infinity. Nothing of that row is kept."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the model's output after {position} tokens is not finite")
        self.position = position


class StalledError(ExecutionError):
    """The client granted no credit for longer than it may hold a slot."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no credit was granted for {timeout_s:g} s")
        self.timeout_s = timeout_s


class StepFailedError(ExecutionError):
    """The forward pass raised. The message of the cause stays in the server's log."""

    def __init__(self) -> None:
        super().__init__("the step failed; see the server's log")


class CheckpointError(WkvmError):
    """A model cannot be loaded."""


class ModelNotFoundError(CheckpointError):
    """There is no model at that path."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's files contradict themselves, each other, or end early."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class UnsupportedModelError(CheckpointError):
    """The checkpoint is whole, but wkvm does not run such a model."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class ConfigError(WkvmError):
    """A setting, or a combination of settings, is not allowed."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(f"{setting}: {why}")
        self.setting = setting
        self.why = why


class MissingExtraError(WkvmError):
    """An optional part of wkvm is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed; install it with: pip install 'wkvm[{extra}]'")
        self.extra = extra
        self.module = module
