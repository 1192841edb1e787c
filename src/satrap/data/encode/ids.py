"""Columns of ready-made ids, written by `satrap prepare` and supported by all readers."""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

from satrap.batch import Ids
from satrap.errors import DataError
from satrap.schema import MISSING_ID


class IdType(pa.ExtensionType):  # type: ignore[misc]
    """Arrow type of ids that were hashed with a salt; null means missing.

    The type is stored in the file, so a recipe need not list the hashed columns. Programs that do not know
    the type read uint64.

    Args:
        salt: of the hash, as `Schema.salt`.
    """

    def __init__(self, salt: int) -> None:
        self.salt = salt
        super().__init__(pa.uint64(), "satrap.id")

    def __arrow_ext_serialize__(self) -> bytes:
        return str(self.salt).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Self:
        return cls(int(serialized))


pa.register_extension_type(IdType(0))


def id_array(ids: Ids, salt: int) -> pa.Array:
    """Return ids, uint64[n], as an array of `IdType`; `MISSING_ID` is null."""
    return pa.ExtensionArray.from_storage(IdType(salt), pa.array(ids, mask=ids == np.uint64(MISSING_ID)))


def ids_of(array: pa.Array, salt: int) -> Ids:
    """Return the ids of an array of `IdType`, uint64[n], a copy; `DataError` if they have another salt."""
    if array.type.salt != salt:
        raise DataError(
            f"the ids were hashed with salt {array.type.salt}, but the schema has salt {salt}",
            why="the same value would have two ids",
            fix=f"set salt: {array.type.salt}, or run satrap prepare again",
        )
    ids: Ids = array.storage.fill_null(MISSING_ID).to_numpy(zero_copy_only=False).copy()
    return ids
