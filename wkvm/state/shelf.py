"""The bytes of payloads, in whichever tier they are.

Going down, a tier is left only when the one below has a copy that was verified. Going up, every
byte from disk or the object store is verified before anybody sees it.
"""

import logging
import sqlite3
from dataclasses import dataclass, field, replace

import torch
from blake3 import blake3
from torch import Tensor

from wkvm.core.errors import (
    BadStateFileError,
    HostTierFullError,
    StateDamagedError,
    StoreFailedError,
    StoreFullError,
)
from wkvm.core.registry import TAIL_IDS, canonical_json
from wkvm.core.states import Tier
from wkvm.state.catalogue import Catalogue
from wkvm.state.columns import PAYLOAD_COLUMNS
from wkvm.state.filling import Filling
from wkvm.state.format import TOKEN_BYTES
from wkvm.state.host import HostTier
from wkvm.state.image import EncodedImage, StateImage, encode_image, unpack_ids
from wkvm.state.ledger import Content
from wkvm.state.objects import ObjectTier
from wkvm.state.payloads import Payloads
from wkvm.state.tables import PayloadRow, find_payload, identity_of

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """An image on its way into the store. Making one hashes it.

    Raises:
        ValueError: the image's last page is not zero behind its last token.

    Attributes:
        uid: of the payload that it becomes, if there is none with these bytes yet.
        file: that ``Shelf.write`` made of it; None before.
    """

    image: StateImage
    uid: str
    encoded: EncodedImage = field(init=False)
    file: str | None = None

    def __post_init__(self) -> None:
        self.image.check_tail()
        self.encoded = encode_image(self.image)

    @property
    def content(self) -> Content:
        """What the catalogue says of it."""
        carried = self.image.carried
        log = unpack_ids(self.image.token_ids[-TOKEN_BYTES * TAIL_IDS :])
        tail = [*log, *carried.pending][-TAIL_IDS:]
        return Content(
            content_id=self.encoded.content_id,
            digest=self.encoded.digest,
            n_bytes=self.encoded.n_bytes,
            identity=canonical_json(self.image.identity.to_json()),
            n_computed=carried.n_computed,
            n_pending=len(carried.pending),
            tail=canonical_json(tail),
        )


class Shelf:
    """All tiers but the device's. Threads may call any method at the same time.

    Args:
        objects: the tier below the disk; None for none.
        limit: bytes of the tier in host memory.

    Attributes:
        moving: names of objects that are being made, and not to be collected.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        payloads: Payloads,
        objects: ObjectTier | None,
        limit: int,
    ) -> None:
        self._catalogue = catalogue
        self.payloads = payloads
        self.objects = objects
        self.host = HostTier(limit, catalogue.index.notices)
        self.moving = set[str]()

    def write(self, draft: Draft) -> None:
        """Put a draft on the disk.

        Raises:
            StoreFullError, StoreFailedError: see ``Payloads.write``.
        """
        if draft.file is None:
            draft.file = self.payloads.write(draft.encoded)

    def has_file(self, payload: PayloadRow) -> bool:
        """Whether a payload's bytes are on disk, which is looked at. What is damaged is put apart.

        Raises:
            StoreFailedError: the disk refused.
        """
        if payload.file is None:
            return False
        try:
            self.payloads.verify(payload.file, payload.digest)
        except BadStateFileError as error:
            self.damaged(payload, error.why)
            return False
        return True

    def discard(self, draft: Draft) -> None:
        """The draft's file, if it has one, is not needed."""
        if draft.file is not None:
            self.payloads.remove(draft.file)
            draft.file = None

    def image(self, payload: PayloadRow, into: Tensor | None = None) -> StateImage:
        """The image of a payload, from the highest tier that has it.

        Args:
            into: see ``Payloads.read``. Without it the image may be shared with others.

        Raises:
            BadStateFileError: the file is not what it should be, or it moved meanwhile.
            StateDamagedError: this was found before.
            StoreFailedError: a tier refused.
            ValueError: ``into`` does not fit.
        """
        image = self.host.get(payload.uid)
        if image is not None:
            return image if into is None else _copied(image, into)
        if payload.damage is not None:
            raise StateDamagedError(payload.content_id[:16], payload.damage)
        if payload.file is not None:
            image = self.payloads.read(payload.file, payload.digest, into)
        elif payload.object is not None:
            image = self._from_objects(payload)
            if into is not None:
                return _copied(image, into)
        else:
            raise BadStateFileError("it was in memory alone")
        if identity_of(payload.identity) != image.identity:
            raise BadStateFileError("it is another model's")
        if into is None:
            self.host.admit(payload.uid, image, is_only_copy=False)
        return image

    def save(self, payload: PayloadRow) -> None:
        """Write to disk what is in memory alone. Nothing happens to what is not.

        Raises:
            StoreFullError, StoreFailedError: see ``Payloads.write``.
        """
        image = self.host.get(payload.uid)
        if payload.is_durable:
            self.host.settle(payload.uid)
        elif image is not None:
            self._write_from_host(payload, image)

    def cool(self, payload: PayloadRow) -> None:
        """Let an image leave host memory, once its file was looked at.

        A file that is gone or damaged since is written anew, from memory.

        Raises:
            StoreFullError, StoreFailedError: see ``Payloads.write``; it stays in memory.
        """
        image = self.host.get(payload.uid)
        if image is None:
            return
        if payload.object is None and not self.has_file(payload):
            self._write_from_host(payload, image)
        self.host.cool(payload.uid)

    def _write_from_host(self, payload: PayloadRow, image: StateImage) -> None:
        draft = Draft(image, payload.uid)
        self.write(draft)

        def place(db: sqlite3.Connection) -> bool:
            row = find_payload(db, payload.id)
            if row is None or row.uid != payload.uid or row.file is not None:
                return False
            db.execute(
                "UPDATE payloads SET file = ?, damage = NULL WHERE id = ?", (draft.file, row.id)
            )
            return True

        try:
            was_placed = self._catalogue.write(place)
        except (StoreFullError, StoreFailedError):
            # A catalogue that failed may have it after all: the next opening knows.
            if not self._catalogue.is_failed:
                self.discard(draft)
            raise
        if was_placed and draft.file is not None:
            self.payloads.settle(draft.file)
            self.host.settle(payload.uid)
        else:
            self.discard(draft)

    def tier(self, payload: PayloadRow) -> Tier:
        """The fastest tier that has a payload."""
        if self.host.has(payload.uid):
            return Tier.HOST
        return Tier.COLD if payload.file is None and payload.object is not None else Tier.DISK

    def make_room(self) -> None:
        """Write the coldest image that is in memory alone to disk, so that it may leave memory.

        Raises:
            HostTierFullError: there is none.
            StoreFullError, StoreFailedError: see ``Payloads.write``.
        """
        uid = self.host.coldest_only_copy()
        if uid is None:
            raise HostTierFullError(self.host.limit)
        found = self._catalogue.read(
            f"SELECT {PAYLOAD_COLUMNS} FROM payloads p WHERE uid = ?", (uid,)
        )
        if found:
            self.save(PayloadRow(*found[0]))
        else:
            self.host.drop(uid)

    def damaged(self, payload: PayloadRow, why: str) -> bool:
        """Put a payload's file apart, and note it. Its object takes its place, if it has one.

        Returns:
            Whether an object takes its place. One that is damaged itself stays where it is.
        """
        has_other = payload.file is not None and payload.object is not None
        logger.error("a payload is damaged and was put in quarantine: %s", why)
        if payload.file is not None:
            # First of all: a file that the catalogue does not know would be swept away.
            self.payloads.isolate(payload.file)
        damage = None if has_other else why

        def note(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE payloads SET file = NULL, damage = ? WHERE id = ? AND file IS ?",
                (damage, payload.id, payload.file),
            )

        try:
            self._catalogue.write(note, frees=True)
        except (StoreFailedError, StoreFullError):
            logger.warning("the damage could not be noted in the catalogue", exc_info=True)
        return has_other

    def _from_objects(self, payload: PayloadRow) -> StateImage:
        if self.objects is None or payload.object is None:
            raise StoreFailedError("read a state", "it is in an object store that is not set up")
        filling = Filling(payload.n_bytes, lambda header: None, self.payloads.new_record)
        for piece in self.objects.pieces(payload.object):
            filling.feed(piece)
        image = filling.image()
        if filling.header is None or filling.header.digest != payload.digest:
            raise BadStateFileError("its digest is not the one that was committed")
        return image

    def verify_object(self, payload: PayloadRow, name: str) -> None:
        """Read an object for its bytes alone, a few MiB at a time.

        Raises:
            BadStateFileError: they are not those of the payload.
            StoreFailedError: there is no object store, or it refused.
        """
        if self.objects is None:
            raise StoreFailedError("read a state", "it is in an object store that is not set up")
        hasher = blake3()
        for piece in self.objects.pieces(name):
            hasher.update(piece)
        if hasher.hexdigest() != payload.content_id:
            raise BadStateFileError("the object's bytes are not those that were written")


def _copied(image: StateImage, into: Tensor) -> StateImage:
    if into.dtype != torch.uint8 or into.shape != image.record.shape:
        raise ValueError(f"a record of {len(image.record)} bytes does not fit {into.shape}")
    into.copy_(image.record)
    return replace(image, record=into)
