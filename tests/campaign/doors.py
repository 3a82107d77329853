"""Requests to every route of the package: without a key, with a wrong key, with odd paths and verbs, and with any body.

The server has an administrator's key and adapts. Clients without the key must see no data and change nothing; with the
key, a bad request must be refused in one line. No answer may be a 5xx, and the server must work as before afterwards.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
from collections.abc import Iterator

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page import routes
from tests.campaign.record import Lost, Unit
from tests.campaign.servers import ADMIN_KEY

STAGE = "doors"
SET = "/set_internal_state"
READS = (routes.PAGE, routes.DATA, routes.HISTORY_PATH)
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
KEYS = (None, "", "wrong", ADMIN_KEY + "x", ADMIN_KEY[:-1], ADMIN_KEY.upper(), "k" * 8000)
"""No key beyond ASCII: SGLang 0.5.23 answers those with 500, even on its own routes."""
SECRETS = (b'"rounds_by_tier"', b'"by_batch"', b'"current_steps"')
TIMEOUT = 60.0
BIG = 10_000_000
Header = dict[str, str]


def run(unit: Unit, server: CpuServer) -> None:
    """Send requests to every route; *server* has ADMIN_KEY and adapts."""
    draw = unit.random()
    before = _state(server)
    for key, path, verb in itertools.product(KEYS, (*READS, SET), VERBS):
        _knock(unit, server, verb, path, _bearer(key), b"{}" if verb != "GET" else None)
    for shape in _shapes(draw):
        for verb in ("GET", "POST"):
            _knock(unit, server, verb, shape, {}, b'{"server_args": {"adaptive_force_steps": 1}}')
    for name, scheme in (("Basic", ADMIN_KEY), ("bearer", "wrong"), ("Bearer  ", ADMIN_KEY + " x")):
        _knock(unit, server, "GET", routes.DATA, {"authorization": f"{name} {scheme}"}, None)
    for name, body in _bodies(draw):
        _knock(unit, server, "POST", SET, {}, body, what=f"without a key: {name}")
        _refused_or_taken(unit, server, name, body)
    for query in ("span=1e9", "span=60&span=60", "span[]=60", "span=%00", "span=" + "6" * 60_000, "span=\u0661", "%"):
        status, _, answer = _send(server, "GET", f"{routes.HISTORY_PATH}?{query}", _bearer(ADMIN_KEY), None)
        unit.check(status < 500, "an odd query", f"{query[:60]!r}: {status} {answer[:200]!r}")
    _half_requests(unit, server)
    if not server.is_running():
        raise Lost(f"the server died: {server.log_tail()}")
    after = _state(server)
    for name in ("forced_steps", "config", "degraded"):
        unit.check(after[name] == before[name], "the state is as before", f"{name}: {before[name]} -> {after[name]}")


def _knock(
    unit: Unit, server: CpuServer, verb: str, path: str, headers: Header, body: bytes | None, what: str = ""
) -> None:
    """Ask without the right key: no data, no change, no 5xx."""
    what = what or f"{verb} without the key"
    try:
        status, _, answer = _send(server, verb, path, headers, body)
    except (OSError, http.client.HTTPException) as error:
        # A server may close the connection on invalid HTTP or on an unwanted body.
        unit.tried[what] += 1
        unit.figures["connections closed"] = unit.figures.get("connections closed", 0) + 1
        if not server.is_running():
            raise Lost(f"{verb} {path[:80]!r}: {error}") from error
        return
    seen = [secret for secret in SECRETS if secret in answer]
    sound = not seen and status < 500 and b"Traceback" not in answer
    unit.check(sound, what, f"{path[:80]!r}: {status} {answer[:200]!r}")
    taken = status == 200 and path == SET and verb in ("POST", "PUT")
    unit.check(not taken, "nothing is changed without the key", f"{verb} {answer[:200]!r}")


def _refused_or_taken(unit: Unit, server: CpuServer, name: str, body: bytes) -> None:
    """Send *body* with the key: this package or SGLang may refuse it in one line, but it is never a server error."""
    what = f"with the key: {name}"
    try:
        status, kind, answer = _send(server, "POST", SET, _bearer(ADMIN_KEY), body)
    except (OSError, http.client.HTTPException) as error:
        unit.lose(what, f"{type(error).__name__}: {error}")
        return
    unit.check(status < 500, what, f"{status} {answer[:300]!r}")
    if status == 400 and b'"message":"adaptive_' in answer[:200]:  # ours; SGLang's refusals repeat the request's body
        told = f"{name}: {len(answer)} bytes of {kind}"
        unit.check("json" in kind and len(answer) < 4000, "a refusal is short", told)


def _shapes(draw: random.Random) -> Iterator[str]:
    """Yield paths that resemble ours."""
    for path in (*READS, SET):
        yield from (path + end for end in ("/", "%00", "%2f", "?x=%ff", ";x", "#"))
        yield from ("/" + path, path.upper(), f"/x/..{path}", f"/%2e{path}", f"/./{path[1:]}")
        yield from (path.replace("a", "%61"), f"{path}{'/' * 5000}")
        at = draw.randrange(1, len(path))
        yield path[:at] + "%" + f"{ord(path[at]):02x}" + path[at + 1 :]


def _bodies(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    wrap = '{{"server_args": {{"{}": {}}}}}'.format
    values = {
        "a number beyond float": "1e999", "a huge integer": "9" * 5000, "2^63": str(2**63), "NaN": "NaN",
        "a negative": "-2", "text": '"7"', "true": "true", "a list nested 900 deep": "[" * 900 + "]" * 900,
        "nesting of 10^5": "[" * 100_000 + "]" * 100_000, "with a lone surrogate": '"\\ud800"',
        "in 10 MB": json.dumps("x" * BIG),
    }  # fmt: skip
    for key in ("adaptive_force_steps", "adaptive_config", "adaptive_zero_step_extend_every"):
        yield from ((f"{key}, {name}", wrap(key, value).encode()) for name, value in values.items())
        yield f"{key}, given twice", f'{{"server_args": {{"{key}": 99, "{key}": 98}}}}'.encode()
    keys = ",".join(f'"k{index}":0' for index in range(80_000))
    yield "a configuration of 10^5 keys, one twice", wrap("adaptive_config", f'{{{keys},"a":0,"a":0}}').encode()
    markup = '{"<script>alert(1)</script>": {"candidate_steps": ["<img src=x onerror=alert(1)>"]}}'
    yield "markup", wrap("adaptive_config", markup).encode()
    yield "control characters", wrap("adaptive_config", '{"\\u001b[2J\\r\\nadaptive: forged": 1}').encode()
    yield "two keys at once", b'{"server_args": {"adaptive_config": {}, "adaptive_force_steps": 1}}'
    yield "server_args a list", b'{"server_args": ["adaptive_config"]}'
    yield "server_args null", b'{"server_args": null}'
    yield "no object", b"[1, 2"
    yield "not UTF-8", b'{"server_args": {"adaptive_config": {"\xff": 1}}}'
    yield "UTF-16", '{"server_args": {"adaptive_force_steps": 99}}'.encode("utf-16")
    yield "nothing", b""
    yield "10 MB of nothing", b" " * BIG
    yield "chance", bytes(draw.randrange(256) for _ in range(2000))


def _half_requests(unit: Unit, server: CpuServer) -> None:
    """Open connections that send less than they announce, and leave."""
    head = f"POST {SET} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n"
    chunked = "transfer-encoding: chunked\r\n\r\nffffffff\r\n{"
    for rest in ("", "content-length: 1000\r\n\r\n{", chunked, "content-length: -1\r\n\r\n"):
        with socket.create_connection((server.host, server.port), TIMEOUT) as line:
            line.sendall((head + rest).encode())
        unit.tried["a request that stops half way"] += 1


def _send(server: CpuServer, verb: str, path: str, headers: Header, body: bytes | None) -> tuple[int, str, bytes]:
    """Return status, content type and body of the answer; *path* is sent verbatim."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT)
    connection._encode_request = lambda line: line.encode("latin-1")  # type: ignore[attr-defined]  # verbatim
    try:
        connection.putrequest(verb, path.encode().decode("latin-1"), skip_accept_encoding=True)
        for name, value in {"content-type": "application/json", **headers}.items():
            connection.putheader(name, value.encode())
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.getheader("content-type", ""), response.read()
    finally:
        connection.close()


def _state(server: CpuServer) -> dict[str, object]:
    found: dict[str, object] = server.server_info()["internal_states"][0]["adaptive"]
    return found


def _bearer(key: str | None) -> Header:
    return {} if key is None else {"authorization": f"Bearer {key}"}
