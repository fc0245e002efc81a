"""Going back: to a version, or to a token position, where a state is kept or can be made again."""

from wkvm.core.registry import Durability
from wkvm.core.states import StateInfo
from wkvm.engine.states.making import Making


class Rollback(Making):
    """Operations that go back. See ``Operations`` for what holds for all of them."""

    async def rollback(
        self,
        tenant: str,
        name: str,
        *,
        version: int | None = None,
        position: int | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> StateInfo:
        """A new head that equals an earlier point. What is there stays.

        Args:
            version: to which to go back; or
            position: how many tokens are left, those pending included. Where no state is kept
                after so many, it is made again from the nearest one before.
            expected_version: of the head; None for any.

        Raises:
            StateNotFoundError: there is no such handle, version or position.
            StaleVersionError: the head is elsewhere.
        """
        backing = self._backing
        backing.check_here(tenant, name)
        wanted = backing.durability(durability)
        (info,) = await self._make(
            tenant,
            lambda: [
                backing.store.rollback(
                    tenant,
                    name,
                    version=version,
                    position=position,
                    expected_version=expected_version,
                    durability=wanted,
                    idempotency_key=idempotency_key,
                )
            ],
        )
        return info
