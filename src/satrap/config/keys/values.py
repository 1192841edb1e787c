"""Types of values that several recipe keys share."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Rate = Annotated[float, Field(gt=0)]
Address = Annotated[str, Field(pattern=r"^\S+:[0-9]{1,5}$")]
Share = Annotated[float, Field(ge=0)]
UNITS = {"": 1} | {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")}


def as_bytes(value: object) -> object:
    """Read `4GiB`, `512MiB` or a plain number of bytes."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)", value)
    if match is None:
        raise ValueError("Input should be a size such as 512MiB or 4GiB")
    return int(float(match[1]) * UNITS[match[2]])


def as_seconds(value: object) -> object:
    """Read `500ms`, `5s`, `2m` or a plain number of seconds."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)", value)
    if match is None:
        raise ValueError("Input should be a time such as 500ms, 5s or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[match[2]]


def as_device(value: object) -> object:
    """Accept only `cpu`, `cuda` and `cuda:N` among strings."""
    if isinstance(value, str) and not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise ValueError("Input should be cpu, cuda or cuda:N")
    return value


Device = Annotated[str, BeforeValidator(as_device)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(as_seconds)]
Bytes = Annotated[int, Field(ge=1), BeforeValidator(as_bytes)]
