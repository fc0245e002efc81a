"""For scripts that use a client of others: no host but this machine is looked up.

To be imported before the client is; what else was asked for is in ``asked``.
"""

import os
import socket
from typing import Any

asked = list[str]()
_look_up = socket.getaddrinfo


def _getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    if host not in (None, "127.0.0.1", b"127.0.0.1", "localhost"):
        asked.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "no network in this test")
    return _look_up(host, *args, **kwargs)


socket.getaddrinfo = _getaddrinfo
for _variable in ("http_proxy", "https_proxy", "all_proxy", "openai_api_key", "openai_base_url"):
    os.environ.pop(_variable, None)
    os.environ.pop(_variable.upper(), None)
