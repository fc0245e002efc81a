"""Faults in what moves to another server, and in what is sent a second time."""

from tools.faults.fault import Fault

MOVES = (
    Fault(
        "what has moved to another server is changed here",
        "wkvm/state/tables.py",
        "        if MOVED_TAG in self.tags:\n",
        "        if False:\n",
        ("tests/engine/states/test_races.py::test_no_change_is_made_to_what_has_moved_meanwhile",),
    ),
    Fault(
        "what has moved to another server gets a version here",
        "wkvm/state/changes.py",
        "        if handle is not None:\n            handle.check_stays()\n",
        "",
        ("tests/engine/states/test_races.py::test_no_change_is_made_to_what_has_moved_meanwhile",),
    ),
    Fault(
        "what was tagged on its way leaves without its tags",
        "wkvm/state/handles.py",
        "            if (handle.tags, handle.expires_at) != (text, began.expires_at):\n",
        "            if False:\n",
        (
            "tests/engine/states/test_races.py::test_what_was_changed_while_it_was_on_its_way_has_not_moved",
        ),
    ),
    Fault(
        "what has a newer version than was exported leaves without it",
        "wkvm/state/handles.py",
        "        return self._change_handle(tenant, name, version, mark)\n",
        "        return self._change_handle(tenant, name, None, mark)\n",
        (
            "tests/engine/states/test_races.py::test_what_was_changed_while_it_was_on_its_way_has_not_moved",
        ),
    ),
    Fault(
        "a turn begins on a handle that moved while it was loaded",
        "wkvm/engine/states/requests.py",
        "            self._backing.check_here(*key)\n            self._run(turn, ids)\n",
        "            self._run(turn, ids)\n",
        (
            "tests/engine/states/test_races.py::test_a_turn_that_is_loaded_until_its_handle_has_moved_does_not_begin",
        ),
    ),
    Fault(
        "a restart forgets what has moved",
        "wkvm/engine/states/service.py",
        "        backing.note_kept_elsewhere()\n",
        "",
        (
            "tests/engine/states/test_races.py::test_what_has_moved_is_refused_to_all_operations_after_a_restart",
        ),
    ),
    Fault(
        "a request goes on here and where it moved to",
        "wkvm/engine/states/migration.py",
        "            self._parking.leave(request_id, moved)\n",
        "            self._parking.unpark(request_id)\n",
        (
            "tests/engine/states/test_migration.py::test_a_stream_that_moved_goes_on_there_without_a_lost_or_doubled_id",
        ),
    ),
    Fault(
        "a move that nobody ends holds its state for ever",
        "wkvm/engine/states/migration.py",
        ".call_later(limit, self._give_up, key)",
        ".call_later(1e6 * limit, self._give_up, key)",
        ("tests/engine/states/test_migration.py::test_a_move_that_nobody_ends_is_given_up",),
    ),
    Fault(
        "a state is moved to two places at a time",
        "wkvm/engine/states/migration.py",
        "        if key in self._moves:\n",
        "        if False:\n",
        ("tests/engine/states/test_migration.py::test_a_state_is_moved_once_at_a_time",),
    ),
    Fault(
        "a response that is asked for again is made again",
        "wkvm/gateway/responses/handlers.py",
        "        made = await _made_before(call, key)\n",
        "        made = None\n",
        (
            "tests/gateway/test_responses_again.py::test_a_response_that_is_asked_for_again_is_appended_once",
        ),
    ),
    Fault(
        "a response that is being made is made again",
        "wkvm/gateway/responses/keys.py",
        '            found[0] in ("completed", "incomplete") or there.is_made(before, found[1])\n',
        '            found[0] in ("completed", "incomplete")\n',
        (
            "tests/gateway/test_responses_again.py::test_of_two_that_were_both_new_when_they_came_one_is_made",
        ),
    ),
    Fault(
        "a key stands for whatever is sent with it",
        "wkvm/gateway/responses/keys.py",
        "    if digest != key.digest:\n",
        "    if False:\n",
        ("tests/gateway/test_responses_again.py::test_a_key_stands_for_one_request",),
    ),
    Fault(
        "a key of one tenant stands for a response of another",
        "wkvm/gateway/responses/keys.py",
        "FROM asked WHERE tenant = ? AND key = ?",
        "FROM asked WHERE coalesce(tenant, ?) IS NOT NULL AND key = ?",
        ("tests/gateway/test_responses_again.py::test_a_key_is_its_tenants_alone",),
    ),
    Fault(
        "items that are sent again are added again",
        "wkvm/gateway/conversations/talks.py",
        "        before = None if key is None else talk_of(db, tenant, key)\n",
        "        before = None\n",
        ("tests/gateway/test_responses_again.py::test_items_are_added_once",),
    ),
    Fault(
        "the key of a response outlives it",
        "wkvm/gateway/responses/room.py",
        '        db.execute("DELETE FROM asked WHERE response = ?", (at,))\n',
        "",
        (
            "tests/gateway/test_responses_again.py::test_nothing_is_left_of_the_key_of_what_is_deleted",
        ),
    ),
)
