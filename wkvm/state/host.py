"""The tier in host memory: images by the uid of their payload, up to so many bytes.

What is nowhere else stays until it is; of the rest the one that was used longest ago goes first.
What somebody else holds anyhow, a turn that began from it for instance, is found here as well and
costs nothing: so many turns from one version share one copy, also of a state that has no room here.
"""

import threading
import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from wkvm.core.layout import StateLayout
from wkvm.core.registry import Carried, Identity
from wkvm.state.image import StateImage
from wkvm.state.notices import Notices


@dataclass(slots=True)
class _Held:
    image: StateImage
    is_only_copy: bool
    tenant: str


class _Alive(NamedTuple):
    """An image that somebody may hold, but for its record: that is looked for."""

    identity: Identity
    layout: StateLayout
    carried: Carried
    token_ids: bytes
    record: "weakref.ref[Tensor]"


class HostTier:
    """Images in memory. Threads may call any method at the same time.

    Args:
        limit: bytes; an image that is larger is not taken.

        notices: told what comes and what leaves.

    Attributes:
        limit: likewise.
    """

    def __init__(self, limit: int, notices: Notices | None = None) -> None:
        self.limit = limit
        self._notices = Notices() if notices is None else notices
        self._held = OrderedDict[str, _Held]()
        self._alive = dict[str, _Alive]()
        self._n_bytes = 0
        self._n_only = Counter[str]()
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Bytes of all images that are held."""
        return self._n_bytes

    @property
    def n_images(self) -> int:
        """How many images are held."""
        return len(self._held)

    def get(self, payload: str) -> StateImage | None:
        """The image of a payload, which becomes the one used last; None if nobody holds it."""
        with self._lock:
            held = self._held.get(payload)
            if held is None:
                return self._elsewhere(payload)
            self._held.move_to_end(payload)
            return held.image

    def has(self, payload: str) -> bool:
        """Whether the image of a payload is held. It does not become the one used last."""
        return payload in self._held

    def n_only_bytes(self, tenant: str) -> int:
        """Bytes of a tenant's images that are nowhere else."""
        return self._n_only[tenant]

    def admit(
        self, payload: str, image: StateImage, *, is_only_copy: bool, tenant: str = ""
    ) -> bool:
        """Hold an image; others that exist elsewhere make room.

        Args:
            tenant: whose it is; needed of what is nowhere else.

        Returns:
            False if there is no room: nothing was changed.
        """
        with self._lock:
            self._note(payload, image)
            held = self._held.get(payload)
            if held is not None:
                if not is_only_copy:
                    self._settle(held)
                self._held.move_to_end(payload)
                return True
            needed = self._n_bytes + image.nbytes - self.limit
            leaving = list[str]()
            for other, one in self._held.items():
                if needed <= 0:
                    break
                if not one.is_only_copy:
                    leaving.append(other)
                    needed -= one.image.nbytes
            if needed > 0:
                return False
            for other in leaving:
                self._remove(other)
            self._held[payload] = _Held(image, is_only_copy, tenant)
            if is_only_copy:
                self._n_only[tenant] += image.nbytes
            self._n_bytes += image.nbytes
            self._notices.note_payload(payload)
            return True

    def settle(self, payload: str) -> None:
        """The tier below has a verified copy of it."""
        with self._lock:
            held = self._held.get(payload)
            if held is not None:
                self._settle(held)

    def drop(self, payload: str) -> None:
        """Nobody needs it any more."""
        with self._lock:
            self._alive.pop(payload, None)
            if payload in self._held:
                self._remove(payload)

    def cool(self, payload: str) -> None:
        """Let go of what is elsewhere too, and do not find it any more with whoever holds it.

        Who asks for it next gets what is below.
        """
        with self._lock:
            self._alive.pop(payload, None)
            held = self._held.get(payload)
            if held is not None and not held.is_only_copy:
                self._remove(payload)

    def coldest_only_copy(self) -> str | None:
        """Of what is nowhere else, the payload that was used longest ago."""
        with self._lock:
            return next((at for at, held in self._held.items() if held.is_only_copy), None)

    def _note(self, payload: str, image: StateImage) -> None:
        """Find an image from now on for as long as anybody holds its record."""
        known = self._alive.get(payload)
        if known is not None and known.record() is not None:
            return

        def forget(gone: "weakref.ref[Tensor]") -> None:
            # Whenever the last one lets go of it: no lock may be waited for.
            one = self._alive.get(payload)
            if one is not None and one.record is gone:
                self._alive.pop(payload, None)

        record = weakref.ref(image.record, forget)
        self._alive[payload] = _Alive(
            image.identity, image.layout, image.carried, image.token_ids, record
        )

    def _elsewhere(self, payload: str) -> StateImage | None:
        alive = self._alive.get(payload)
        record = None if alive is None else alive.record()
        if alive is None or record is None:
            return None
        return StateImage(
            identity=alive.identity,
            layout=alive.layout,
            carried=alive.carried,
            token_ids=alive.token_ids,
            record=record,
        )

    def _settle(self, held: _Held) -> None:
        if held.is_only_copy:
            held.is_only_copy = False
            self._n_only[held.tenant] -= held.image.nbytes
            if not self._n_only[held.tenant]:
                del self._n_only[held.tenant]

    def _remove(self, payload: str) -> None:
        held = self._held.pop(payload)
        self._notices.note_payload(payload)
        self._settle(held)
        self._n_bytes -= held.image.nbytes
