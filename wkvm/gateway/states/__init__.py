"""States over HTTP: operations on them, and requests that go on from them or keep them."""
