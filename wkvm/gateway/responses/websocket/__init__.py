"""``GET /v1/responses``, upgraded: many responses over one connection, in lanes.

``handler`` is the route, ``session`` one connection, ``lanes`` the order of what it asks for,
``memory`` what it alone remembers, ``steering`` what is put in while a response is made, and
``frames`` what is read from the wire and written to it. A response itself is made as over HTTP.
"""
