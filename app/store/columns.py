"""The vocabulary of the schema: its metadata, its types, and one word a kind of column."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP, UUID
from sqlalchemy.types import UserDefinedType

from app.domain import lifecycle as lc


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id, which never wraps."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in DDL."""
        return "XID8"


metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    }
)

# Rows that are updated often keep free space in their page, so that the update stays there (HOT).
HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02}


def with_(**parameters: object) -> dict[str, Any]:
    """Storage parameters of a table."""
    return {"postgresql_with": parameters}


def id_(name: str = "id") -> sa.Column[Any]:
    """A primary key that this service makes."""
    return sa.Column(name, UUID, primary_key=True)


def uuid_(name: str, *, null: bool = False) -> sa.Column[Any]:
    """A UUID."""
    return sa.Column(name, UUID, nullable=null)


def text_(name: str, *, null: bool = False) -> sa.Column[Any]:
    """A text."""
    return sa.Column(name, sa.Text, nullable=null)


def at_(name: str, *, null: bool = True) -> sa.Column[Any]:
    """A moment."""
    return sa.Column(name, TIMESTAMP(timezone=True), nullable=null)


def int_(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[Any]:
    """A 32-bit number."""
    return sa.Column(name, sa.Integer, nullable=null, server_default=default)


def bigint_(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[Any]:
    """A 64-bit number."""
    return sa.Column(name, sa.BigInteger, nullable=null, server_default=default)


def flag_(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[Any]:
    """True or false."""
    return sa.Column(name, sa.Boolean, nullable=null, server_default=default)


def json_(name: str, *, null: bool = False) -> sa.Column[Any]:
    """A JSON document."""
    return sa.Column(name, JSONB, nullable=null)


def one_of(column: str, values: object) -> sa.CheckConstraint:
    """A CHECK that the column holds one of these values."""
    return sa.CheckConstraint(f"{column} IN ({lc.sql_list(values)})", name=column)
