"""What is shown of other people's text can neither steer a terminal nor reorder a line."""

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from allpull.report.printable import printable, short

# Every character class that a terminal or an XML parser may act on.
ANY_TEXT = st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Z", "C"]), max_size=60)
NASTY = st.lists(
    st.sampled_from(
        ["\x1b[31m", "\x1b]8;;http://x\x1b\\", "\x9b2J", "\x1b", "\x07", "a", "\n", "\u202e", "\ufffe", "é"]
    )
).map("".join)


@given(ANY_TEXT | NASTY)
def test_nothing_invisible_is_left(text):
    assert all(unicodedata.category(char)[0] != "C" for char in printable(text))
    assert not set(printable(text)) & set("\u2028\u2029\n\r\t")


@given(ANY_TEXT | NASTY)
def test_a_second_pass_changes_nothing(text):
    assert printable(printable(text)) == printable(text)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_plain_ascii_passes_unchanged(text):
    assert printable(text) == text


@given(NASTY)
def test_what_is_left_is_valid_in_xml(text):
    # XML 1.0, production [2] Char: the SVG converter aborts the whole process on anything else.
    assert not re.search("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", printable(text))


def test_sequences_go_with_their_parameters_and_text_stays():
    assert printable("\x1b[1;31mred\x1b[0m") == "red"
    assert printable("\x1b]0;new title\x07name") == "name"
    assert printable("\x1b]52;c;Y2xpcA==\x1b\\name") == "name"  # writes the clipboard on many terminals
    assert printable("\x9b31mred") == "red"
    assert printable("a\x1b]unterminated") == "a"
    assert printable("two\r\nlines") == "two  lines"
    assert printable("naïve 中文 — ±×") == "naïve 中文 — ±×"


def test_many_unfinished_sequences_take_no_more_than_linear_time():
    assert printable("\x1b]0;" * 100_000) == ""
    assert printable("\x9d" * 100_000) == ""


@given(ANY_TEXT, st.integers(min_value=1, max_value=40))
def test_short_keeps_its_limit_and_says_when_it_cut(text, limit):
    cut = short(text, limit)
    assert len(cut) <= limit
    assert cut == printable(text) or cut.endswith("…")
