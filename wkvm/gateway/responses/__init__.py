"""OpenAI's Responses API on states: a response's id is the name of the state at its end.

``core`` makes and runs one response and knows no HTTP: whoever has events to send drives it.
``records`` keeps what responses and conversations are, in SQLite; the states themselves are the
engine's. ``handlers`` are the routes.
"""
