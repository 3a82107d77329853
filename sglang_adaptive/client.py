"""A small HTTP client for SGLang's server, standard library only, and what commands do with an adaptive one."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
Item = TypeVar("Item")


ADMIN_PATHS = ("/set_internal_state", "/flush_cache", "/abort_request")
"""Paths for which SGLang asks for the administrator's key if it has one."""
LONGEST_ANSWER = 1000
"""Characters of a refusal that a message shows; SGLang's own are shorter."""


class RequestError(RuntimeError):
    """The server refused a request; the message has its status and answer."""

    def __init__(self, method: str, path: str, status: int, answer: str) -> None:
        words = " ".join(answer.split())
        shown = words if len(words) <= LONGEST_ANSWER else f"{words[:LONGEST_ANSWER]} ..."
        super().__init__(f"{method} {path}: {status} {shown}")
        self.answer = answer
        """Its whole answer."""
        self.asks_for_key = status in (401, 403)
        self.is_admin = _is_admin(path)


def in_words(error: RequestError | OSError | http.client.HTTPException) -> str:
    """Return why a call of Client failed, as a phrase about the server: "it asks for a key: ..."."""
    if not isinstance(error, RequestError):
        return f"it does not answer ({getattr(error, 'strerror', None) or error or type(error).__name__})"
    if not error.asks_for_key:
        return str(error)
    if error.is_admin:
        return "it asks for the administrator's key: give the right one with --admin-api-key"
    return "it asks for a key: give the right one with --api-key"


@dataclass(repr=False, eq=False)  # a repr would show the keys
class Client:
    """Talks to one server; every call opens its own connection, so calls from several threads do not mix."""

    host: str
    port: int
    timeout: float = 300.0
    scheme: str = "http"
    api_key: str | None = None
    """For all paths but ADMIN_PATHS, and without an admin key for these as well."""
    admin_api_key: str | None = None

    @classmethod
    def from_url(
        cls, url: str, *, api_key: str | None = None, admin_api_key: str | None = None, timeout: float = 300.0
    ) -> Client:
        """Return a client of the server at *url*, as in http://127.0.0.1:30000. Raises ValueError for anything else."""
        refusal = f"{url!r} is not a server's address; expected one like http://127.0.0.1:30000"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")
        except ValueError:  # a port beyond 65535, half an IPv6 address, an empty or overlong part of a name
            raise ValueError(refusal) from None
        named = parts.scheme in ("http", "https") and host and port != 0
        if not named or parts.path.strip("/") or parts.query:
            raise ValueError(refusal)
        port = port or (443 if parts.scheme == "https" else 80)
        return cls(host, port, timeout, scheme=parts.scheme, api_key=api_key, admin_api_key=admin_api_key)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def get(self, path: str) -> Any:
        """Return the answer to GET `path`: parsed JSON, or text when it is not JSON."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """Return the answer to POST `path` with `body` as JSON: parsed JSON, or text when it is not JSON."""
        return self._exchange("POST", path, body)

    def server_info(self) -> dict[str, Any]:
        """Return SGLang's `/server_info`; the scheduler's state is under `internal_states`[0].

        Adaptive replicas are sorted by rank, because SGLang lists them in the order of their answers.
        """
        info: dict[str, Any] = self.get("/server_info")
        if isinstance(info, dict) and isinstance(info.get("internal_states"), list):
            info["internal_states"].sort(key=_replica)
        return info

    def configure(self, config: Mapping[str, Any]) -> list[bool]:
        """Replace the server's adaptive configuration from its next round on.

        Returns True for each data-parallel replica. Raises RequestError with the reason if the server refuses it and
        keeps the old configuration.
        """
        return self._set(adaptive_config=dict(config))

    def force_steps(self, steps: int | None, seconds: float | None = None) -> list[bool]:
        """Hold *steps*, or release them with None; with *seconds*, hold for that long unless another call comes first.

        Returns True for each data-parallel replica, False for one without adaptive speculation. Raises RequestError
        with the reason if the steps have no runtime state, or if adaptive speculation was requested but is off.
        """
        more = {} if seconds is None else {"adaptive_force_seconds": seconds}
        return self._set(adaptive_force_steps=steps, **more)

    def flush_cache(self) -> None:
        """Empty the prefix cache once no request runs. Raises RequestError if one still runs after a minute."""
        self.post("/flush_cache?timeout=60", {})

    def generate(self, prompt: Prompt, max_new_tokens: int = 64, *, rid: Any = None, **sampling: Any) -> Any:
        """Return SGLang's answer: `text`, `output_ids`, `meta_info`; a list of those for a list of prompts.

        A prompt is text or token ids. Greedy unless `temperature` says otherwise; continues past the end-of-text token
        if `ignore_eos=True`. Other keywords are SGLang's sampling parameters.
        """
        return self.post("/generate", _request(prompt, max_new_tokens, rid, sampling))

    def stream(
        self, prompt: Prompt, max_new_tokens: int = 64, *, rid: Any = None, **sampling: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield SGLang's answer as it grows; closing the iterator early aborts the request."""
        yield from self._events("/generate", _request(prompt, max_new_tokens, rid, sampling))

    def chat(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int = 256, **more: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an OpenAI chat completion, the last of which has its `usage`; closing aborts it.

        The server applies its chat template to *messages*, each a `role` and a `content`. Greedy unless `temperature`
        says otherwise; other keywords go into the request's body.
        """
        body = {"model": "default", "messages": list(messages), "max_tokens": max_tokens, "temperature": 0, **more}
        yield from self._events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})

    def abort(self, rid: str) -> None:
        """Abort the request that was sent with this `rid`, if there is one."""
        self.post("/abort_request", {"rid": rid})

    def _set(self, **values: Any) -> list[bool]:
        updated: list[bool] = self.post("/set_internal_state", {"server_args": values})
        return updated

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        connection = self._connect()
        try:
            response = self._send(connection, "POST", path, {**body, "stream": True})
            for line in response:
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if data:
                    yield json.loads(data)
            raise ConnectionError("the answer broke off")  # between two events http.client sees an end
        except http.client.IncompleteRead:
            raise ConnectionError("the answer broke off") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return make(self.host, self.port, timeout=self.timeout)

    def _exchange(self, method: str, path: str, body: Any) -> Any:
        connection = self._connect()
        try:
            text = self._send(connection, method, path, body).read().decode(errors="replace")
        finally:
            connection.close()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if key := (self.admin_api_key if _is_admin(path) else None) or self.api_key:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        if response.status >= 400:
            raise RequestError(method, path, response.status, response.read().decode(errors="replace"))
        return response


def _is_admin(path: str) -> bool:
    return path.partition("?")[0] in ADMIN_PATHS


def _request(prompt: Prompt, max_new_tokens: int, rid: Any, sampling: dict[str, Any]) -> dict[str, Any]:
    first = prompt if isinstance(prompt, str) or not prompt else prompt[0]
    key = "text" if isinstance(first, str) else "input_ids"
    parameters = {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling}
    body: dict[str, Any] = {key: prompt, "sampling_params": parameters}
    if rid is not None:
        body["rid"] = rid
    return body


def _replica(state: Any) -> int:
    block = state.get("adaptive") if isinstance(state, dict) else None
    return int(block.get("dp_rank") or 0) if isinstance(block, dict) else 0


def in_parallel(
    work: Callable[[Item], Any], items: Iterable[Item], most: int, meanwhile: Callable[[], object], every: float,
    until: float = math.inf,
) -> list[Any]:  # fmt: skip
    """Return what *work* returns for each of *items*, with *most* of them at work while there are enough.

    None for an item that was not begun by *until* (monotonic seconds). *meanwhile* is called every *every* seconds in
    this thread. Raises the first error of *work*, and then begins no other item.
    """
    waiting = deque(enumerate(items))
    found: list[Any] = [None] * len(waiting)
    errors: list[Exception] = []

    def run() -> None:
        while time.monotonic() < until and not errors:
            try:
                index, item = waiting.popleft()
            except IndexError:
                return
            try:
                found[index] = work(item)
            except Exception as error:  # raised again below, in the calling thread
                errors.append(error)

    # Daemon threads, so that a server that hangs does not block an interrupted command.
    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(most, len(found)))]
    for thread in threads:
        thread.start()
    while living := [thread for thread in threads if thread.is_alive()]:
        meanwhile()
        living[0].join(every)
    if errors:
        raise errors[0]
    return found


HOLD_SECONDS = 15.0
"""The server releases a held depth this long after the last renewal, however the command ended."""


class NotReady(Exception):
    """The server cannot be measured; the message is one line."""


class AdaptiveServer:
    """A client of one adaptive server."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.info: dict[str, Any] = {}
        self.state = self.refresh()
        self._held_before: int | None = self.state["forced_without_end"]
        self._held: int | None = None
        self._renew_at = 0.0

    def refresh(self) -> dict[str, Any]:
        """Read and return the ``adaptive`` block of /server_info, of the first replica if there are several.

        Raises NotReady if the server does not answer or is not adaptive.
        """
        self.info = read_info(self.client)
        found = self.info["internal_states"][0].get("adaptive")
        if found is None:
            raise NotReady(f"{self.client.url} is not adaptive: start it with --speculative-adaptive-config throughput")
        if not found["active"]:
            raise NotReady(f"{self.client.url} is not adaptive: {found['reason']}")
        self.state = found
        return self.state

    def hold(self, steps: int) -> None:
        """Hold *steps*, for HOLD_SECONDS unless :meth:`renew` is called. Raises NotReady with the server's message."""
        self._force(steps, HOLD_SECONDS)
        self._held, self._renew_at = steps, time.monotonic() + HOLD_SECONDS / 3

    def renew(self) -> None:
        """Renew the current hold if a third of its time is over."""
        if self._held is not None and time.monotonic() >= self._renew_at:
            self.hold(self._held)

    def put_back(self) -> None:
        """Restore the hold that has no end, or release; another timed hold is not restored."""
        self._held = None
        self._force(self._held_before, None)

    def _force(self, steps: int | None, seconds: float | None) -> None:
        try:
            held = self.client.force_steps(steps, seconds)
        except (RequestError, OSError, HTTPException) as error:
            raise NotReady(f"{self.client.url}: {in_words(error)}") from None
        if not all(held):
            raise NotReady(f"{self.client.url}: its scheduler refused the depth; its log says why")


def most_running(info: Mapping[str, Any]) -> int | None:
    """Return how many requests a replica of the server of *info* runs at once; None if unknown."""
    found: int | None = info["internal_states"][0].get("effective_max_running_requests_per_dp")
    return found


def read_info(client: Client) -> dict[str, Any]:
    """Return /server_info. Raises NotReady if the server refuses, does not answer or is not SGLang's."""
    try:
        info = client.server_info()
    except (RequestError, OSError, HTTPException) as error:
        raise NotReady(f"{client.url}: {in_words(error)}") from None
    if not isinstance(info, dict) or not info.get("internal_states"):
        raise NotReady(f"{client.url}: it answers, but not like an SGLang server")
    return info
