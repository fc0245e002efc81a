"""The console as the gateway serves it: open, cached by digest, and under a strict policy."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from tests.gateway.harness import gateway_running
from wkvm.core.api_keys import ApiKey
from wkvm.gateway.pages import FOLDER, Pages
from wkvm.gateway.routes import ROUTES

KEYS = (ApiKey.of("key", "ada"),)
FILES: dict[str, str] = msgspec.json.decode((FOLDER / "manifest.json").read_bytes())["files"]


def path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/{name}"


@pytest.mark.parametrize("name", FILES)
async def test_every_file_of_the_console_is_there_without_a_key_and_whole(name: str) -> None:
    async with (
        gateway_running(keys=KEYS, routes=ROUTES) as running,
        running.http.get(path_of(name)) as response,
    ):
        body = await response.read()
        assert response.status == 200
        assert hashlib.sha256(body).hexdigest() == FILES[name]
        headers = response.headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        kinds = {
            "html": "text/html",
            "js": "text/javascript",
            "css": "text/css",
            "svg": "image/svg",
            "txt": "text/plain",
        }
        assert response.content_type.startswith(kinds[name.rsplit(".", 1)[1]])


async def test_what_has_a_digest_in_its_name_is_kept_for_ever_and_the_page_is_asked_for() -> None:
    async with gateway_running(routes=ROUTES) as running:
        for name in FILES:
            async with running.http.get(path_of(name)) as response:
                kept = response.headers["Cache-Control"]
                tag = response.headers["ETag"]
            assert ("immutable" in kept) == name.startswith("assets/")
            again = {"If-None-Match": tag}
            async with running.http.get(path_of(name), headers=again) as response:
                assert (response.status, await response.read()) == (304, b"")
                assert response.headers["ETag"] == tag


async def test_who_does_not_take_gzip_gets_the_plain_file() -> None:
    async with gateway_running(routes=ROUTES) as running:
        plain = {"Accept-Encoding": "identity"}
        async with running.http.get("/", headers=plain) as response:
            assert "Content-Encoding" not in response.headers
            assert hashlib.sha256(await response.read()).hexdigest() == FILES["index.html"]


@pytest.mark.parametrize(
    "path",
    [
        "/assets/none.js",
        "/assets/..%2Fmanifest.json",
        "/assets/%2e%2e%2findex.html",
        "/manifest.json",
    ],
)
async def test_nothing_else_of_the_folder_is_served(path: str) -> None:
    async with gateway_running(routes=ROUTES) as running, running.http.get(path) as response:
        assert response.status in (401, 404)


async def test_where_the_page_was_not_packaged_the_answer_says_what_to_do(tmp_path: Path) -> None:
    async with gateway_running(routes=ROUTES) as running:
        running.gateway.pages = Pages(tmp_path)
        async with running.http.get("/") as response:
            assert response.status == 404
            assert "npm run build" in (await response.json())["error"]["message"]


def test_the_page_has_nothing_inline_and_nothing_of_elsewhere() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert "<style" not in page
    assert "style=" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert all("src=" in part for part in page.split("<script")[1:])
