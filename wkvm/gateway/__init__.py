"""HTTP as a client of the binary protocol, and all that is text: tokenizers, chat templates.

``app`` takes every request through ``door`` to the handler that ``routes`` names; ``calls`` is what
handlers have to do with. Each interface has a package of its own: ``chat``, ``states``,
``sessions``, ``native``, ``responses``, ``conversations``, ``anthropic``, ``llama_cpp``, and
``sglang``. What they share is in ``text`` (tokenizers, templates), ``parsing`` (what answers
say), ``streams`` (ids to events) and ``monitoring``, and in the modules beside them.
"""
