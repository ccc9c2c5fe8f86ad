"""One conversation with the API: a token, retries that do nothing twice, refusals as exceptions."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx

from portal.cli.config import Config
from portal.cli.language import _, language

_WAITS = (0.2, 0.5, 1.0)  # seconds between tries
_PASSING = frozenset({502, 503, 504})  # of a proxy; the portal's own carry an error object


class Refused(Exception):
    """The portal said no."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.status = status
        self.error = error


class Unreachable(Exception):
    """No answer, or none of the API's."""


class Client:
    """Asks the API of one portal."""

    def __init__(self, config: Config, timeout_s: float = 30.0) -> None:
        self._http = httpx.Client(
            base_url=f"{config.url.rstrip('/')}/api/v1/",
            headers={
                "Authorization": f"Bearer {config.token}",
                "Accept": "application/json",
                "Accept-Language": language(),
            },
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
        )

    def get(self, path: str, **query: Any) -> Any:
        """Read one thing. Raises Refused, Unreachable."""
        return self._ask("GET", path, params=query)

    def all(self, path: str, **query: Any) -> Iterator[Any]:
        """Yield every row of a list, page by page."""
        page = self.get(path, **query)
        while True:
            yield from page["results"]
            if not page["next"]:
                return
            # Only the cursor is taken: the token goes to the address it was given for.
            cursor = httpx.URL(page["next"]).params["cursor"]
            page = self.get(path, **{**query, "cursor": cursor})

    def post(self, path: str, body: Any = None, *, key: str = "") -> Any:
        """Act once, however often the network fails: all tries carry one idempotency key."""
        headers = {"Idempotency-Key": key or str(uuid4())}
        return self._ask("POST", path, json=body if body is not None else {}, headers=headers)

    def _ask(self, method: str, path: str, **rest: Any) -> Any:
        for pause in (*_WAITS, None):
            try:
                response = self._http.request(method, path, **rest)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise Unreachable(_("This is no address of a portal: %s") % error) from error
            except httpx.TransportError as error:
                if pause is None:
                    raise Unreachable(
                        _("The portal at %(url)s does not answer: %(error)s")
                        % {
                            "url": self._http.base_url.host,
                            "error": str(error) or type(error).__name__,
                        }
                    ) from error
            else:
                if pause is None or not _is_passing(response):
                    return _content(response)
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")


def _is_passing(response: httpx.Response) -> bool:
    return response.status_code in _PASSING and _error(response) is None


def _content(response: httpx.Response) -> Any:
    if response.is_success:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise _no_portal(response) from None
    if error := _error(response):
        raise Refused(response.status_code, error)
    raise _no_portal(response)


def _error(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = response.json()
    except ValueError:
        return None
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) and {"code", "message"} <= set(error) else None


def _no_portal(response: httpx.Response) -> Unreachable:
    return Unreachable(
        _("What answers at %(url)s is not a Corral portal (status %(status)s).")
        % {"url": response.url.host, "status": response.status_code}
    )
