"""Columns that hold ids, not values that have ids: `satrap prepare` writes them, all readers know them."""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

from satrap.batch import Ids
from satrap.errors import DataError
from satrap.schema import MISSING_ID


class IdType(pa.ExtensionType):  # type: ignore[misc]
    """Arrow's type of ids that were hashed with a salt; null means missing.

    Files keep it beside the numbers, so no recipe has to say which columns are hashed. Programs that do not
    know it read uint64.

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
    """Return the ids of an array of `IdType`, uint64[n], a copy; `DataError` if their salt is another one."""
    if array.type.salt != salt:
        raise DataError(
            f"the ids were hashed with salt {array.type.salt}, and salt {salt} is asked for",
            why="a value would have two different ids",
            fix=f"set salt: {array.type.salt}, or prepare the data again",
        )
    ids: Ids = array.storage.fill_null(MISSING_ID).to_numpy(zero_copy_only=False).copy()
    return ids
