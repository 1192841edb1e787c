"""Conversion of formatted numbers such as `1.234,56` or `1,234.56` to `1234.56`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from satrap.errors import ConfigError

MARKS = ",", ".", "'", " ", "_"


@dataclass(frozen=True, slots=True)
class Numerals:
    """Format of numbers in text.

    Args:
        decimal: decimal mark, "." or ",".
        thousands: mark between groups of three digits, one of `,.'_` or a space; None: none.

    Raises:
        ConfigError: an unsupported mark, or the same mark for both.
    """

    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ConfigError(f"csv: decimal must be '.' or ',', got {self.decimal!r}")
        if self.thousands is not None and self.thousands not in MARKS:
            raise ConfigError(f"csv: thousands must be one of , . ' _ or a space, got {self.thousands!r}")
        if self.thousands == self.decimal:
            raise ConfigError(f"csv: decimal and thousands are both {self.decimal!r}")

    @property
    def plain(self) -> bool:
        """Whether numbers need no conversion."""
        return self.decimal == "." and self.thousands is None

    @property
    def pattern(self) -> str:
        """Regular expression of numbers in this format, without surrounding blanks."""
        grouped = rf"|\d{{1,3}}(?:{re.escape(self.thousands)}\d{{3}})+" if self.thousands else ""
        mark = re.escape(self.decimal)
        return rf"[-+]?(?:(?:\d+{grouped})(?:{mark}\d*)?|{mark}\d+)(?:[eE][-+]?\d+)?"

    def rewritten(self, array: pa.Array) -> pa.Array:
        """Return text or bytes with its numbers in plain format; other text is unchanged."""
        if self.plain:
            return array
        numbers = pc.match_substring_regex(array, rf"^\s*{self.pattern}\s*$")
        plain = array
        if self.thousands:
            plain = pc.replace_substring(plain, self.thousands, "")
        if self.decimal != ".":
            plain = pc.replace_substring(plain, self.decimal, ".")
        return pc.if_else(numbers, plain, array)
