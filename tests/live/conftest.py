"""One portal for all tests of this folder, since it keeps nothing that a flush does not empty."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Web, database_url


@pytest.fixture(scope="session")
def portal(django_db_setup: None, django_db_blocker: Any) -> Iterator[Web]:
    with django_db_blocker.unblock():
        environ = {"DATABASE_URL": database_url()}
    server = Web(environ)
    yield server
    print(server.log.read_text())
    server.close()


@pytest.fixture
def live_server_url(portal: Web, transactional_db: None) -> str:
    return portal.url
