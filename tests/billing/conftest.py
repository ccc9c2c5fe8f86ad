"""Fixtures of the tests of money. Imports nothing of Django: settings are not read yet."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.billing.house import House


@pytest.fixture
def house(db: None) -> "House":
    """Return an organization that is billed in dollars and UTC."""
    from tests.billing import house

    return house.build()
