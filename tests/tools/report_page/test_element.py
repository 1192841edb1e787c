from satrap.tools.report_page.element import Html, element, joined
from tests.tools.report_page.runs import NASTY, Page


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    page = Page(element("p", NASTY, element("b", NASTY), Html("<i></i>"), title=NASTY))
    assert page.tags == ["p", "b", "i"]
    assert page.texts == [NASTY, NASTY]
    assert page.attributes == [("title", NASTY)]


def test_names_of_attributes_and_pieces_of_content() -> None:
    assert element("line", x1=1, class_="grid", aria_label="a", id=None) == (
        '<line x1="1" class="grid" aria-label="a"></line>'
    )
    assert joined(["a", None, 1, [element("b", "x"), "<"], (part for part in ("y",))]) == "a1<b>x</b>&lt;y"
