"""One consistent picture of the database for a whole block of reading."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def one_snapshot(*, read_only: bool = True) -> Iterator[None]:
    """Run the block in one REPEATABLE READ transaction: what others commit meanwhile is not seen.

    Inside a transaction that has begun already, that one's isolation stands.
    """
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if read_only:
                    cursor.execute("SET TRANSACTION READ ONLY")
        yield
