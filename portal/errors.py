"""The one shape of a refusal: a code for programs, a sentence for people, and what to do next."""

from collections.abc import Mapping
from typing import Any, ClassVar


class DomainError(Exception):
    """A rule of the domain said no.

    Each module raises its own subclass, named `UnableTo...`. Doors translate it: the API into its
    error object, pages into a message beside the form.

    `code` is stable and lower_snake_case. `message` and `help` are sentences fit for a customer.
    `details` holds plain JSON values (limits, amounts missing). `status` is the HTTP status.
    """

    status: ClassVar[int] = 409

    def __init__(
        self, code: str, message: str, *, help: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.help = help
        self.details = dict(details or {})


class NotFound(DomainError):
    """The thing does not exist, or belongs to somebody else: the answer is the same."""

    status = 404


class Forbidden(DomainError):
    """The person may see this, but their role does not allow the act."""

    status = 403


class Invalid(DomainError):
    """What was sent makes no sense; `details` names the fields: {"field": ["sentence"]}."""

    status = 400
