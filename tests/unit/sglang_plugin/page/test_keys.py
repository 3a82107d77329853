"""Access to the page, decided by SGLang's own key check around the real routes."""

from __future__ import annotations

import itertools

import pytest
from fastapi import FastAPI
from sglang.srt.utils.auth import add_api_key_middleware
from starlette.testclient import TestClient

from sglang_adaptive.sglang_plugin.page import routes

pytestmark = pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated")  # SGLang's own
API, ADMIN = "for-users", "for-operators"
SECRET = b'{"ranks":["seen"]}'
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def fetch() -> bytes:
    return SECRET


async def fetch_history(span: int) -> bytes:
    return SECRET


def server(api_key: str | None, admin_api_key: str | None, root_path: str = "") -> TestClient:
    app = FastAPI()
    routes.add_routes(app, fetch, fetch_history)
    if api_key or admin_api_key:
        add_api_key_middleware(app, api_key=api_key, admin_api_key=admin_api_key)
        routes.prompt_for_key(app)
    return TestClient(app, root_path=root_path)


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("api_key", "admin_api_key", "opens"),
    [
        (None, None, {None, "wrong", API, ADMIN}),
        (API, None, {API}),
        (None, ADMIN, {ADMIN}),  # SGLang leaves its own plain routes open here
        (API, ADMIN, {ADMIN}),
    ],
)
def test_only_the_key_shows_anything(api_key: str | None, admin_api_key: str | None, opens: set[str | None]) -> None:
    with server(api_key, admin_api_key) as client:
        for key, path in itertools.product(
            (None, "wrong", API, ADMIN), (routes.PAGE, routes.DATA, routes.HISTORY_PATH)
        ):
            assert client.get(path, headers=bearer(key)).status_code == (200 if key in opens else 401)
            if key not in opens:
                for shape in (path, path + "/", "/" + path, path + "?", path.upper()):
                    answer = client.get(shape, headers=bearer(key))
                    assert SECRET not in answer.content and b"<html" not in answer.content
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert SECRET not in client.request(method, routes.DATA).content


def test_a_refused_browser_is_asked_for_the_key() -> None:
    with server(API, None) as client:
        refused = client.get(routes.PAGE, headers=BROWSER)
        shown = client.get(routes.PAGE, headers={**BROWSER, **bearer(API)})
        assert (refused.status_code, shown.status_code) == (401, 200)
        assert refused.content == shown.content  # a document that is the same for all reveals nothing
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["content-security-policy"] == shown.headers["content-security-policy"]
        assert client.get(routes.DATA, headers=BROWSER).json() == {"error": "Unauthorized"}
        assert client.get(routes.PAGE).json() == {"error": "Unauthorized"}
        assert client.get("/another", headers=BROWSER).json() == {"error": "Unauthorized"}


def test_a_server_below_a_path_asks_for_the_key_too() -> None:
    with server(API, None, root_path="/llm") as client:
        assert client.get("/llm" + routes.PAGE, headers=BROWSER).text.startswith("<!doctype html>")


def test_routes_are_added_once() -> None:
    app = FastAPI()
    for _ in range(2):
        routes.add_routes(app, fetch, fetch_history)
    assert [route.path for route in app.router.routes].count(routes.DATA) == 1
