"""The exceptions of wkvm. Raise the leaf, catch the branch.

WkvmError
├── RequestError             the request is wrong; sending it again will not help
│   ├── InvalidParameterError    a field has a value that is not allowed
│   ├── TokenOutOfRangeError     an id that the vocabulary does not have
│   ├── EmptyPromptError         no ids to start from
│   ├── PromptTooLongError       more ids than the server takes
│   ├── StateNotFoundError       no such handle, version or checkpoint, for whoever asks
│   ├── StateExistsError         the name is taken
│   ├── StaleVersionError        the handle has moved on since
│   ├── StateMismatchError       a state of another model or layout
│   ├── BadStateFileError        bytes that are no state, or not a whole one
│   ├── StateNotFiniteError      the state would hold NaN or infinity
│   ├── KeyReusedError           an idempotency key that stands for another operation
│   └── StateMovedError          the state is at another engine now
├── CapacityError            no room now; the same request may succeed later
│   ├── OutOfSlotsError          fewer slots are free than were asked for
│   ├── QueueFullError           the waiting line has reached its bound
│   ├── OverloadedError          more is asked for than can be done in time, or kept
│   ├── RateLimitedError         a tenant does something more often than it may
│   ├── DrainingError            the engine finishes what it has and takes nothing new
│   ├── QuotaError               a tenant has as much as it may have
│   ├── StoreFullError           the disk has no room but its reserve
│   ├── StepMemoryError          the device has no memory for a step of such a shape
│   └── HostTierFullError        host memory holds states that are nowhere else
├── ExecutionError           the request was good and could not be carried out
│   ├── NonFiniteError           its logits hold NaN or infinity
│   ├── StalledError             its client granted no credit for too long
│   ├── StepFailedError          the forward pass raised
│   ├── EngineFailedError        the engine cannot go on; its process ends
│   ├── RequestOverError         it ended before there was a state: cancelled or timed out
│   ├── MutationFailedError      a plug-in that changes states is broken
│   ├── StateDamagedError        the stored bytes are not those that were written
│   └── StoreFailedError         the disk refused; nothing was changed
├── CheckpointError          a model cannot be loaded
│   ├── ModelNotFoundError       nothing at that path
│   ├── CorruptCheckpointError   the files contradict themselves or end early
│   └── UnsupportedModelError    a model that wkvm does not run
├── StoreError               a store cannot be opened
│   ├── StoreLockedError         another process has it open
│   └── BadStoreError            not a store, not ours, damaged, or of a newer wkvm
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
    """The prompt, or prompt and max_tokens together, exceed the server's limit.

    Args:
        n_prompt: ids of the prompt; with ``has_guest``, also of the state that it goes on from.
        has_guest: it is the limit on what attention layers keep of a request.
    """

    def __init__(
        self, n_prompt: int, max_tokens: int, limit: int, *, has_guest: bool = False
    ) -> None:
        why = (
            ": as many, with those of a state, one request gets of the guest pool (--guest-tokens)"
        )
        # Clients of OpenAI's interface know the error by the first words.
        super().__init__(
            f"prompt: this model's maximum context length is {limit} tokens, which"
            f" {n_prompt} of the prompt and {max_tokens} of max_tokens exceed"
            f"{why if has_guest else ''}"
        )
        self.n_prompt = n_prompt
        self.max_tokens = max_tokens
        self.limit = limit


class StateNotFoundError(RequestError):
    """The tenant has no such handle, version or checkpoint, or has it no more.

    The same for what never was, what expired, and what is another tenant's.
    """

    def __init__(self, ref: str) -> None:
        super().__init__(f"no state {ref}")
        self.ref = ref


class StateExistsError(RequestError):
    """The name is taken, or was, by versions that must not be taken for these."""

    def __init__(self, name: str, why: str = "the name is taken") -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


class StaleVersionError(RequestError):
    """The handle is not at the version that was expected. Nothing was changed."""

    def __init__(self, name: str, expected: int, head: int) -> None:
        super().__init__(f"{name}: expected version {expected}, the head is {head}")
        self.name = name
        self.expected = expected
        self.head = head


class StateMismatchError(RequestError):
    """The state belongs to another model, another layout, or another tokenizer."""

    def __init__(self, what: str, expected: str, given: str) -> None:
        super().__init__(f"the state's {what} is {given[:16]}, and not {expected[:16]}")
        self.what = what
        self.expected = expected
        self.given = given


class BadStateFileError(RequestError):
    """What was given as a state is none, or not a whole one."""

    def __init__(self, why: str) -> None:
        super().__init__(f"not a state: {why}")
        self.why = why


class StateNotFiniteError(RequestError):
    """The state would hold NaN or infinity. Nothing was kept of it."""

    def __init__(self, tensor: str) -> None:
        super().__init__(f"{tensor} would not be finite")
        self.tensor = tensor


class KeyReusedError(RequestError):
    """An idempotency key came again with another operation."""

    def __init__(self) -> None:
        super().__init__("the idempotency key was used for another operation")


class StateMovedError(RequestError):
    """The state was moved to another engine, where it goes on."""

    def __init__(self, name: str, target: str, moved_to: str) -> None:
        super().__init__(f"{name} is {moved_to} at {target} now")
        self.name = name
        self.target = target
        self.moved_to = moved_to


class CapacityError(WkvmError):
    """No room now. The request was good; retrying later may succeed.

    Attributes:
        retry_after_s: when, as far as the server can tell; None if it cannot.
    """

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class OutOfSlotsError(CapacityError):
    """More slots were asked for than are free."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"wanted {wanted} slots, {free} free")
        self.wanted = wanted
        self.free = free


class QueueFullError(CapacityError):
    """As many requests, or ids of requests, wait as may."""

    def __init__(self, limit: int, of: str, retry_after_s: float | None = None) -> None:
        why = f"the queue holds at most {limit} {of}; retry later"
        super().__init__(why, retry_after_s)
        self.limit = limit
        self.of = of


class OverloadedError(CapacityError):
    """There is more to do than can be done, or kept. Nothing was done of the request."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{why}; retry later", retry_after_s)


class RateLimitedError(CapacityError):
    """The tenant does something more often than it may. Nothing was done."""

    def __init__(self, limit: int, of: str, retry_after_s: float) -> None:
        super().__init__(f"the limit is {limit:,} {of} a second; retry later", retry_after_s)
        self.limit = limit
        self.of = of


class DrainingError(CapacityError):
    """The engine finishes what it has and takes nothing new."""

    def __init__(self) -> None:
        super().__init__("the server is draining; retry elsewhere or later")


class QuotaError(CapacityError):
    """The tenant has as much of something as it may have. Deleting makes room."""

    def __init__(self, of: str, limit: int) -> None:
        super().__init__(f"the limit is {limit:,} {of}; delete what is not needed")
        self.of = of
        self.limit = limit


class StoreFullError(CapacityError):
    """The disk has no room beside the reserve. Deleting still works.

    Args:
        wanted: how many bytes; 0 where that is not known.
    """

    def __init__(self, wanted: int = 0, free: int = 0) -> None:
        needs = f"the store needs {wanted:,} bytes, {free:,} are free beside the reserve"
        super().__init__(needs if wanted else "the disk of the store is full; deleting makes room")
        self.wanted = wanted
        self.free = free


class HostTierFullError(CapacityError):
    """Host memory is full of states that are not on disk, and cannot be put there."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"all {limit:,} bytes for states in host memory are taken")
        self.limit = limit


class StepMemoryError(CapacityError):
    """The device, or the host, had no memory for a step. The engine goes on without its requests.

    What the step was made of decided: alone, or shorter, the request may succeed.
    """

    def __init__(self) -> None:
        super().__init__("there was no memory for the step that the request was in; try again")


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


class EngineFailedError(ExecutionError):
    """The engine cannot go on, and its process ends. What was durable is kept.

    Attributes:
        stalled: whether it stood still for too long; else it failed.
    """

    def __init__(self, *, stalled: bool = False) -> None:
        what = "stood still for too long" if stalled else "failed"
        super().__init__(f"the engine {what} and ends; try again when it has been started anew")
        self.stalled = stalled


class RequestOverError(ExecutionError):
    """The work of an operation ended before there was a state. Nothing was kept."""

    def __init__(self, how: str) -> None:
        super().__init__(f"the operation was {how.replace('_', ' ')}; nothing was kept")
        self.how = how


class MutationFailedError(ExecutionError):
    """A plug-in that changes states cannot be loaded, raised, or returned what does not fit."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the plug-in for the operation {name!r} is broken: {why}")
        self.name = name
        self.why = why


class StateDamagedError(ExecutionError):
    """What is stored of a state is not what was written. It is kept apart and not used."""

    def __init__(self, ref: str, why: str) -> None:
        super().__init__(f"{ref} is damaged: {why}")
        self.ref = ref
        self.why = why


class StoreFailedError(ExecutionError):
    """The disk failed or refused. What was committed before stands; nothing was changed."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"the store could not {what}: {why}")
        self.what = what
        self.why = why


class CheckpointError(WkvmError):
    """A model cannot be loaded."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class ModelNotFoundError(CheckpointError):
    """There is no model at that path."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's files contradict themselves, each other, or end early."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is whole, but wkvm does not run such a model."""


class StoreError(WkvmError):
    """A store cannot be opened."""


class StoreLockedError(StoreError):
    """Another process has the store open."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: another process has this store open; stop it first")
        self.path = path


class BadStoreError(StoreError):
    """The folder is not a store that may be used."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


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
