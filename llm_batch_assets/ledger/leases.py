"""Leases on targets, with fencing tokens that only grow.

A lease says who works on a target now; its token is checked in the ``WHERE`` of every decision,
so that a worker that was paused past its lease changes nothing. Facts are never fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Event, Thread
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import LeaseLost, NotReady
from llm_batch_assets.ledger.database import Ledger, insert_first, insert_for
from llm_batch_assets.ledger.prepared import prepared
from llm_batch_assets.ledger.schema import leases


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof that a holder may decide about a target until ``expires_at`` (microseconds)."""

    target: str
    token: int
    holder: str
    expires_at: int


def acquire(ledger: Ledger, target: str, holder: str, ttl: float) -> Lease | None:
    """Take a lease that is free, expired or already this holder's; the token grows each time.

    Args:
        ledger: the ledger.
        target: ``submission:<key>``, ``revision:<id>`` or ``account:<digest>``.
        holder: names the worker; a restarted worker with the same name takes over at once.
        ttl: seconds.

    Returns:
        The lease, or None while another holder has it.
    """
    with ledger.write("lease") as connection:
        expires = ledger.now(connection) + int(ttl * 1_000_000)
        new = {"target": target, "token": 1, "holder": holder, "expires_at": expires}
        if insert_first(connection, leases, new):
            return Lease(target, 1, holder, expires)
        query = sa.select(leases).where(leases.c.target == target)
        if not ledger.is_sqlite:
            # Somebody is taking it at this moment: do not wait to hear that.
            query = query.with_for_update(skip_locked=True)
        row = connection.execute(query).one_or_none()
        now = ledger.now(connection)
        if row is None or (row.expires_at > now and row.holder != holder):
            return None
        expires = now + int(ttl * 1_000_000)
        token = int(row.token) + 1
        connection.execute(
            sa.update(leases)
            .where(leases.c.target == target)
            .values(token=token, holder=holder, expires_at=expires)
        )
    return Lease(target, token, holder, expires)


def take_free(
    connection: Connection, target: str, holder: str, now: int, expires: int
) -> Lease | None:
    """Take a lease in the caller's transaction; None when somebody took it a moment ago."""
    values = {"target": target, "token": 1, "holder": holder, "expires_at": expires}
    token = connection.execute(
        _upsert(connection.dialect.name), values | {"now": now}
    ).scalar_one_or_none()
    return None if token is None else Lease(target, int(token), holder, expires)


@cache
def _upsert(dialect: str) -> Any:
    """Built once per kind of database: building a statement costs as much as running it."""
    insert = insert_for(dialect, leases)
    upsert = insert.on_conflict_do_update(
        index_elements=[leases.c.target],
        set_={
            "token": leases.c.token + 1,
            "holder": insert.excluded.holder,
            "expires_at": insert.excluded.expires_at,
        },
        where=leases.c.expires_at <= sa.bindparam("now"),
    ).returning(leases.c.token)
    return prepared(upsert)


def renew(ledger: Ledger, lease: Lease, ttl: float) -> Lease:
    """Extend a lease that is still ours, expired or not.

    Raises:
        LeaseLost: another holder has taken the target.
    """
    with ledger.write("lease_renew") as connection:
        expires = ledger.now(connection) + int(ttl * 1_000_000)
        result = connection.execute(
            sa.update(leases)
            .where(leases.c.target == lease.target, leases.c.token == lease.token)
            .values(expires_at=expires)
        )
        if result.rowcount != 1:
            raise LeaseLost(f"The lease on {lease.target} was taken by another worker.")
    return Lease(lease.target, lease.token, lease.holder, expires)


def still_held(ledger: Ledger, lease: Lease) -> int:
    """Read the lease again, as just before the first byte of a create.

    Returns:
        Microseconds until it expires.

    Raises:
        LeaseLost: it has expired or was taken.
    """
    with ledger.read() as connection:
        now = ledger.now(connection)
        row = connection.execute(
            sa.select(leases.c.token, leases.c.expires_at).where(leases.c.target == lease.target)
        ).one_or_none()
    if row is None or row.token != lease.token or row.expires_at <= now:
        raise LeaseLost(f"The lease on {lease.target} has expired or was taken.")
    return int(row.expires_at - now)


_RELEASE = (
    sa.update(leases)
    .where(leases.c.target == sa.bindparam("of_target"), leases.c.token == sa.bindparam("of_token"))
    .values(expires_at=0, holder="")
)


def release(ledger: Ledger, lease: Lease) -> None:
    """Give the target back. The token stays, so that it can only grow."""
    with ledger.write("lease_release") as connection:
        connection.execute(_RELEASE, {"of_target": lease.target, "of_token": lease.token})


def release_holder(ledger: Ledger, holder: str) -> int:
    """Give back everything one dead worker held; returns how many leases that were."""
    with ledger.write("lease_release_holder") as connection:
        result = connection.execute(
            sa.update(leases).where(leases.c.holder == holder).values(expires_at=0, holder="")
        )
    return int(result.rowcount)


def holders(ledger: Ledger) -> list[str]:
    """Every holder that has a lease which is not given back."""
    with ledger.read() as connection:
        query = sa.select(leases.c.holder).where(leases.c.holder != "").distinct()
        return [str(row.holder) for row in connection.execute(query)]


def expiries(ledger: Ledger, names: Iterable[str]) -> dict[str, int]:
    """Holder -> when the last lease that it has not given back ends or ended, in microseconds."""
    query = (
        sa.select(leases.c.holder, sa.func.max(leases.c.expires_at))
        .where(leases.c.holder.in_(list(names)))
        .group_by(leases.c.holder)
    )
    with ledger.read() as connection:
        return {str(holder): int(expires) for holder, expires in connection.execute(query)}


@contextmanager
def held(ledger: Ledger, target: str, holder: str, ttl: float) -> Iterator[Lease]:
    """Hold a target for a block; release it even when the block raises.

    Raises:
        NotReady: another worker has it.
    """
    lease = acquire(ledger, target, holder, ttl)
    if lease is None:
        raise NotReady(f"Another worker is at {target}.", remedy="It is released when it ends.")
    try:
        yield lease
    finally:
        release(ledger, lease)


@contextmanager
def kept(
    ledger: Ledger, target: str, holder: str, ttl: float, *, heartbeat: bool = True
) -> Iterator[Lease]:
    """``held`` with a heartbeat, for work that may outlast one ``ttl``.

    Without one the lease may expire in flight, and the work's decisions are refused by their fence.

    Raises:
        NotReady: another worker has it.
    """
    stop = Event()

    def beat() -> None:
        while not stop.wait(ttl / 3):
            try:
                renew(ledger, lease, ttl)
            except LeaseLost:
                return  # the work's next decision finds out by its fence

    with held(ledger, target, holder, ttl) as lease:
        if not heartbeat:
            yield lease
            return
        thread = Thread(target=beat, name="lease-heartbeat", daemon=True)
        thread.start()
        try:
            yield lease
        finally:
            stop.set()
            thread.join()


def fenced(lease: Lease, now: int) -> sa.ColumnElement[bool]:
    """The condition that a decision carries in its own ``WHERE``; ``now`` is the ledger's."""
    return FENCE.params(fence_of(lease, now))


def fence_of(lease: Lease, now: int) -> dict[str, Any]:
    """What ``FENCE`` is told when a statement that carries it is executed."""
    return {"fence_target": lease.target, "fence_token": lease.token, "fence_now": now}


FENCE = sa.exists(
    sa.select(leases.c.target).where(
        leases.c.target == sa.bindparam("fence_target"),
        leases.c.token == sa.bindparam("fence_token"),
        leases.c.expires_at > sa.bindparam("fence_now"),
    )
)
"""The lease is the newest and has not expired, in the parameters that ``fence_of`` gives."""
