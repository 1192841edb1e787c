"""HTML and SVG elements as text; all other content is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Html(str):
    """Finished markup, which is not escaped."""

    __slots__ = ()


Content = str | int | float | None


def element(tag: str, *content: Content | Iterable[Content], **attributes: object) -> Html:
    """Return `<tag attributes>content</tag>`.

    Text is escaped, `Html` is kept, iterables are joined, None is dropped. In names of attributes `_` stands
    for `-`, and a trailing `_` is dropped (`class_`); an attribute with value None is omitted.
    """
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    inner = "".join(f' {k}="{html.escape(str(v))}"' for k, v in names.items() if v is not None)
    return Html(f"<{tag}{inner}>{joined(content)}</{tag}>")


def joined(content: Iterable[Content | Iterable[Content]]) -> Html:
    """Return concatenated pieces of content, processed as in `element`."""
    return Html("".join(_text(piece) for piece in content))


def _text(piece: Content | Iterable[Content]) -> str:
    if piece is None:
        return ""
    if isinstance(piece, Html):
        return piece
    if isinstance(piece, str | int | float):
        return html.escape(str(piece))
    return joined(piece)
