"""Items that are named and not sent."""

from collections.abc import Sequence

from wkvm.gateway.calls import Gateway
from wkvm.gateway.failures import invalid
from wkvm.gateway.responses import records
from wkvm.gateway.responses.items import Kept


async def resolved(
    items: Sequence[Kept],
    field: str,
    gateway: Gateway,
    tenant: bytes,
    *,
    past: Sequence[Kept] = (),
) -> list[Kept]:
    """Items with references replaced by what they refer to.

    Args:
        field: of the body that has the items.
        tenant: whose kept items may be meant.
        past: items that are meant before those.

    Raises:
        HttpError: 400; there is no item of an id.
    """
    result = list(items)
    for index, item in enumerate(items):
        if item["type"] != "item_reference":
            continue
        name = item["id"]
        found = next((one for one in past if one["id"] == name), None)
        if found is None:
            found = await gateway.responses.database.run(records.referred, tenant, name)
        if found is None:
            raise invalid(f"{field}[{index}].id", f"there is no item {name[:80]!r}")
        result[index] = found
    return result
