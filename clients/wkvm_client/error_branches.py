"""The root and the branches of the exceptions: see ``wkvm_client.errors``."""

from typing import ClassVar, Self

from wkvm_protocol.errors import ErrorCode


class ClientError(Exception):
    """Base of all errors that the clients raise on purpose.

    Attributes:
        code: the number that the server gave, or would have given; None where the
            server has no part in it.
        retryable: whether the same request may succeed later, or elsewhere. After a
            lost connection this does not say that nothing was done.
        field: the field of the request that is at fault, where one is.
        retry_after_ms: how long the server asks to wait; 0 where it did not ask.
    """

    default_code: ClassVar[ErrorCode | None] = None
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        retryable: bool | None = None,
        field: str = "",
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.code: int | None = self.default_code if code is None else code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.field = field
        self.retry_after_ms = retry_after_ms

    def again(self) -> Self:
        """A copy to raise: each consumer's traceback is its own."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        twin.__cause__ = self.__cause__
        return twin


class LinkError(ClientError):
    """The connection is at fault. Every lane on it has ended."""


class RequestError(ClientError):
    """The request is wrong. Sending it again will not help."""


class CapacityError(ClientError):
    """No room now. The request was good; the same one may succeed later."""

    default_retryable = True


class ExecutionError(ClientError):
    """The request was good, and carrying it out failed."""


class DeadlineError(ClientError):
    """The server did not answer in time."""

    default_retryable = True

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")
        self.timeout_s = timeout_s
