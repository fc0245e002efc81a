"""The lanes of one connection that have not ended, and the ids that come for them. No I/O."""

from wkvm_protocol.codec import token_entries
from wkvm_protocol.messages import Tokens, unpack_ids

from wkvm_client.lanes import Lane
from wkvm_client.tracks import Track


class OpenLanes:
    """Lanes by their numbers."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._first_tracks: dict[int, Track] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, request_id: int) -> Lane:
        return self._lanes[request_id]

    def holds(self, lane: Lane) -> bool:
        """Whether it is this one that has its number."""
        return self._lanes.get(lane.request_id) is lane

    def add(self, lane: Lane) -> None:
        """Give a lane its number, in the place of one that had it."""
        self._lanes[lane.request_id] = lane
        self._first_tracks[lane.request_id] = lane.tracks[0]

    def drop(self, request_id: int) -> None:
        """Free the number of a lane."""
        del self._lanes[request_id]
        del self._first_tracks[request_id]

    def clear(self) -> list[Lane]:
        """Free all numbers. Returns the lanes that had them."""
        lanes = list(self._lanes.values())
        self._lanes, self._first_tracks = {}, {}
        return lanes

    def take(self, message: Tokens) -> None:
        """Append ids to their tracks: the hot path. The connection has checked lanes.

        Raises:
            RemoteProtocolError: they are more than a lane may get.
        """
        if not message.choices and not message.counts:
            lanes, ids = unpack_ids(message.lanes), unpack_ids(message.ids)
            first_tracks = self._first_tracks
            for request_id, token_id in zip(lanes, ids, strict=True):
                track = first_tracks[request_id]
                lane = track.lane
                if lane.n_room <= 0:
                    raise lane.overrun("Tokens")
                lane.n_room -= 1
                track.ids.append(token_id)
                if track.hook is not None:
                    track.hook()
            return
        for request_id, choice, entry in token_entries(message):
            lane = self._lanes[request_id]
            if lane.n_room < len(entry):
                raise lane.overrun("Tokens")
            lane.n_room -= len(entry)
            track = lane.tracks[choice]
            track.ids.extend(entry)
            if entry and track.hook is not None:
                track.hook()
