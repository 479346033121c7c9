"""The pool and the one way to run a transaction.

A command is a function that takes a connection and returns its outcomes; it never commits. `run`
gives it a READ COMMITTED transaction, commits, and only then returns. What an error means is
decided here and nowhere else:

- refused or lost before COMMIT was sent: nothing happened (DatabaseUnavailable, or the error);
- deadlock or serialisation failure: run again, three times, with jitter;
- a placement class vanished under a creation: run again, which makes it anew;
- a partition is missing: it is made in a transaction of its own, then the whole is run once more;
- no answer after COMMIT was sent: OutcomeUnknown. It is never run again by us; the repeat settles.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import asyncpg
import structlog

from app.domain.errors import DatabaseUnavailable, OutcomeUnknown, Overloaded
from app.settings import DatabaseSettings
from app.store import epochs, partitions

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.Connection

T = TypeVar("T")
_LOG = structlog.get_logger(__name__)

CLASS_OF_ATTEMPT = "execution_attempts_placement_class_id_fkey"
_TRIES = 3
_PATIENT_TRIES = 5
_RETRY = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    OSError,
    TimeoutError,
)
# Classes of SQLSTATE that speak of the server's state and not of the statement: connection,
# resources, operator intervention, system, wrong credentials, read-only after a failover.
_SERVER_STATE = ("08", "53", "57", "58", "28", "25006", "XX", "55P03", "3D000")


class Database:
    """A bounded pool of connections to one PostgreSQL."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Nothing is connected before the first use, so a service can start without a database."""
        self._settings = settings
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._opening = asyncio.Lock()
        self._begin = (
            "BEGIN ISOLATION LEVEL READ COMMITTED; "
            f"SET LOCAL statement_timeout = {int(settings.statement_timeout_seconds * 1000)}; "
            f"SET LOCAL lock_timeout = {int(settings.lock_timeout_seconds * 1000)}; "
            "SET LOCAL idle_in_transaction_session_timeout = "
            f"{int(settings.statement_timeout_seconds * 2000)}"
        )
        # One plan for all parameters, made once: planning takes longer than the statement does.
        # Made while a table was still empty it would scan it for ever, so it may not.
        self._begin_pinned = (
            f"{self._begin}; SET LOCAL plan_cache_mode = force_generic_plan; "
            "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
        )

    async def run(
        self, command: Callable[[Connection], Awaitable[T]], *, pinned: bool = False
    ) -> T:
        """Run `command` in one transaction and return its outcome after the commit.

        `pinned`: its statements need no plan made for their parameters, as those of hot commands.

        Raises what the command raises (nothing is kept then), DatabaseUnavailable (nothing was
        changed), Overloaded (no connection became free in time) or OutcomeUnknown.
        """
        begin = self._begin_pinned if pinned else self._begin
        mended = False
        for attempt in range(1, _TRIES + 2):
            try:
                return await self._once(command, begin)
            except _RETRY:
                if attempt > _TRIES:
                    raise DatabaseUnavailable from None
                await asyncio.sleep(random.uniform(0.005, 0.05) * attempt)  # noqa: S311
            except asyncpg.ForeignKeyViolationError as error:
                # Its placement class was removed in the same moment: the next try makes it anew.
                if error.constraint_name != CLASS_OF_ATTEMPT or attempt > _TRIES:
                    raise
            except asyncpg.CheckViolationError as error:
                if mended or not partitions.is_missing(error):
                    raise
                mended = True
                await self.run_patiently(partitions.ensure_near)
        raise DatabaseUnavailable

    async def run_patiently(self, command: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a command that waits for no lock for long, again and again while it gets none.

        For changes of the schema: a statement that waits for a table's lock holds up everybody
        behind it, so it gives up soon and comes back later. Raises DatabaseUnavailable.
        """
        return await _patiently(lambda: self._once(command, self._begin))

    @property
    def has_direct(self) -> bool:
        """Whether there is a way past a transaction pooler, to a session of one's own."""
        return self._settings.direct_url is not None

    async def run_outside(self, command: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a command as `run_patiently` does, but in no transaction: in a session of its own.

        For what PostgreSQL refuses inside a transaction; it goes over the direct connection. Each
        try must look at what the one before it left. Raises DatabaseUnavailable.
        """
        return await _patiently(lambda: self._outside(command), tries=3)

    async def _outside(self, command: Callable[[Connection], Awaitable[T]]) -> T:
        settings = self._settings
        if settings.direct_url is None:
            raise DatabaseUnavailable
        try:
            connection = await asyncpg.connect(
                settings.direct_url.get_secret_value(),
                timeout=settings.connect_timeout_seconds,
                statement_cache_size=0,
                server_settings={"application_name": "execution-plane upkeep"},
            )
            try:
                return await command(connection)
            finally:
                await connection.close(timeout=5)
        except (asyncpg.PostgresError, *_LOST) as error:
            if _is_server_state(error):
                raise DatabaseUnavailable from error
            raise

    async def _once(self, command: Callable[[Connection], Awaitable[T]], begin: str) -> T:
        async with self._connection() as connection:
            try:
                await connection.execute(begin)
                outcome = await command(connection)
            except BaseException as error:
                await self._roll_back(connection)
                if _is_server_state(error):
                    raise DatabaseUnavailable from error
                raise
            await self._commit(connection)
            return outcome

    async def _commit(self, connection: Connection) -> None:
        """Send COMMIT; a request that is cancelled meanwhile still lets it finish."""
        commit = asyncio.ensure_future(connection.execute("COMMIT"))
        try:
            answer = await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait([commit])
            raise
        except _RETRY:
            raise
        except (asyncpg.PostgresError, *_LOST) as error:
            _terminate(connection)
            if isinstance(error, asyncpg.IntegrityConstraintViolationError):
                raise
            raise OutcomeUnknown from error
        if answer != "COMMIT":
            raise DatabaseUnavailable

    async def _roll_back(self, connection: Connection) -> None:
        """End a failed transaction; a connection that cannot is closed, so nobody inherits it."""
        try:
            if connection.is_closed():
                return
            rollback = asyncio.ensure_future(connection.execute("ROLLBACK"))
            rollback.add_done_callback(_retrieved)
            async with asyncio.timeout(2):
                await asyncio.shield(rollback)
        except BaseException:  # noqa: BLE001 - whatever went wrong, this connection is not reused
            _terminate(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool for as long as the block lasts."""
        pool = self._pool or await self._open()
        # One that is idle is had at once: a deadline would cost a task and two timers.
        patience = None if pool.get_idle_size() else self._settings.acquire_timeout_seconds
        try:
            connection = await pool.acquire(timeout=patience)
        except TimeoutError as error:
            if pool.get_idle_size() == 0 and pool.get_size() >= self._settings.pool_size:
                raise Overloaded from error
            raise DatabaseUnavailable from error
        except (asyncpg.PostgresError, *_LOST) as error:
            raise DatabaseUnavailable from error
        try:
            yield connection
        finally:
            await asyncio.shield(asyncio.ensure_future(_give_back(pool, connection)))

    async def _open(self) -> asyncpg.Pool[asyncpg.Record]:
        """The pool, made at first use; while the server is away every caller gets 503 at once."""
        async with self._opening:
            if self._pool is None:
                settings = self._settings
                try:
                    self._pool = await asyncpg.create_pool(
                        settings.url.get_secret_value(),
                        min_size=settings.pool_min_size,
                        max_size=settings.pool_size,
                        statement_cache_size=settings.statement_cache_size,
                        timeout=settings.connect_timeout_seconds,
                        command_timeout=settings.statement_timeout_seconds + 2,
                        max_inactive_connection_lifetime=60,
                        init=self._greet,
                        reset=_keep,
                        server_settings=(
                            {"application_name": "execution-plane"}
                            if settings.statement_cache_size
                            else None
                        ),
                    )
                except (asyncpg.PostgresError, *_LOST) as error:
                    raise DatabaseUnavailable from error
            return self._pool

    async def _greet(self, connection: Connection) -> None:
        """See that the feed's epoch is that of the server behind a new connection."""
        await connection.execute(self._begin)
        try:
            due = await epochs.find_due(connection)
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
            due = None  # not migrated yet, which readiness tells
        await connection.execute("ROLLBACK")
        if due is not None:
            await connection.execute(self._begin)
            tell_begun(await epochs.begin_once(connection))
            await connection.execute("COMMIT")

    async def close(self) -> None:
        """Close every connection; running transactions get five seconds."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(5):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    @property
    def in_use(self) -> int:
        """Connections busy now, for metrics."""
        return 0 if self._pool is None else self._pool.get_size() - self._pool.get_idle_size()


def tell_begun(begun: tuple[int, str] | None) -> None:
    """Log that this process began an epoch of the feed."""
    if begun is not None:
        _LOG.warning("feed.epoch_begun", epoch=begun[0], cause=begun[1])


async def _patiently(step: Callable[[], Awaitable[T]], tries: int = _PATIENT_TRIES) -> T:
    """Do it; while others hold the lock that it needs, try again a few times."""
    for attempt in range(1, tries):
        try:
            return await step()
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise
        except _RETRY:
            pass
        await asyncio.sleep(random.uniform(0.1, 0.3) * attempt)  # noqa: S311
    return await step()


async def _keep(_: object) -> None:
    """Nothing to reset: all settings are SET LOCAL, and no session state is ever made."""


async def _give_back(pool: asyncpg.Pool[asyncpg.Record], connection: Connection) -> None:
    try:
        await pool.release(connection, timeout=5)  # type: ignore[arg-type]
    except (asyncpg.PostgresError, *_LOST):
        _terminate(connection)


def _retrieved(task: asyncio.Future[str]) -> None:
    """Somebody has looked at how it ended, even if nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


def _terminate(connection: Connection) -> None:
    """Close it at once; one that the server has ended may have left the pool already."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def _is_server_state(error: BaseException) -> bool:
    """Whether the error says that the server, and not the request, is the trouble."""
    if isinstance(error, (*_RETRY, ValueError)):  # the latter: a value of ours that does not fit
        return False
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_SERVER_STATE)
    return isinstance(error, (*_LOST, asyncpg.InternalClientError))
