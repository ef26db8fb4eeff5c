from pathlib import Path

from prose.check import hits, words

BANNED = words(Path(__file__).with_name("words.txt"))


def test_a_banned_word_is_reported_with_its_line_and_term():
    reported = list(hits("a.md", "# Policy\nThe group with most slack gives way.\n", BANNED))
    assert "a.md:2: gives way -> preempt, is preempted" in reported


def test_text_in_the_fields_terms_passes():
    text = "Earliest deadline first: the group with the most slack is preempted.\n"
    assert list(hits("a.md", text, BANNED)) == []
