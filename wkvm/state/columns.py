"""The columns of the catalogue's tables, in the order of the rows in ``wkvm.state.tables``."""

PAYLOAD_COLUMNS = (
    "p.id, p.uid, p.tenant, p.content_id, p.digest, p.n_bytes, p.identity, p.n_computed, "
    "p.n_pending, p.tail, p.n_refs, p.file, p.object, p.damage"
)
HANDLE_COLUMNS = (
    "h.id, h.tenant, h.name, h.head, h.next_version, h.tags, h.created_at, h.updated_at, "
    "h.expires_at, h.seal"
)
VERSION_COLUMNS = (
    "v.handle, v.version, v.name, v.payload, v.base_handle, v.base_version, v.base_tokens, v.key, "
    "v.provenance, v.created_at, v.seal"
)
HANDLE_WIDTH = HANDLE_COLUMNS.count(",") + 1
VERSION_WIDTH = VERSION_COLUMNS.count(",") + 1
