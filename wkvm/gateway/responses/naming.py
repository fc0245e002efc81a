"""The states of responses, by their names."""

import logging
import uuid
from collections.abc import Iterable

from wkvm_client import errors

from wkvm.gateway.responses.asking import Caller

logger = logging.getLogger("wkvm.gateway")

TAG = {"of": "response"}
"""Of the states of responses, so that they can be told from those that clients have named."""
LOCAL_TTL_S = 3600.0
"""How long a state of a response that is not stored stays that nobody forgets."""


def new_id(caller: Caller) -> str:
    """A name for a response, and for its state: one that this process is asked for again."""
    while True:
        name = f"resp_{uuid.uuid4().hex}"
        if caller.gateway.owns(caller.tenant, name):
            return name


async def forget(caller: Caller, response_ids: Iterable[str]) -> None:
    """Remove the states of responses, as far as they have some and the engine is there."""
    for response_id in response_ids:
        try:
            await caller.client.states.delete(response_id)
        except errors.StateNotFoundError:
            continue
        except errors.ClientError as error:
            logger.warning("the state of a response was not removed: %s", type(error).__name__)
