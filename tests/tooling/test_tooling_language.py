"""The check of language finds words of the list in prose, strings and comments, and leaves code alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def words() -> Any:
    spec = importlib.util.spec_from_file_location("words_check", ROOT / "scripts" / "words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(words: Any, texts: Any) -> list[str]:
    return [rule.word for _, text in texts for rule in words.rules() if rule.pattern.search(text)]


def test_a_word_of_the_list_is_found_in_a_page_and_in_code(words: Any) -> None:
    assert found(words, words.texts_of_page("The file stands beside\nthe store. It is\ntold twice.\n")) == [
        "beside",
        "is told",
    ]
    source = 'def f(beside):\n    """Made anew."""\n    return f"{beside} is foretold"  # whoever asks\n'
    assert sorted(found(words, words.texts_of_code(source))) == ["anew", "foretold", "whoever"]


def test_names_in_code_and_quoted_text_are_left_alone(words: Any) -> None:
    page = "Give `--beside N`.\n\n    unidle x --beside 2\n\n```text\nbeside\n```\n"
    assert not found(words, words.texts_of_page(page))
    source = 'beside = told["beside"]\n"""``beside`` and `anew` are names."""\nx = "made anew"  # words: ok\n'
    assert not found(words, words.texts_of_code(source))


def test_every_word_of_the_list_has_something_to_write_instead(words: Any) -> None:
    rules = words.rules()
    assert len(rules) > 25 and all(rule.instead for rule in rules)
    assert {"beside", "anew", "foretold", "whoever"} <= {rule.word for rule in rules}


def test_words_of_the_list_for_pages_are_errors_in_pages_alone(words: Any) -> None:
    everywhere = {rule.word for rule in words.rules()}
    in_pages = {rule.word for rule in words.rules(of_pages=True)}
    assert {"says", "goes on", "nobody"} <= in_pages
    assert not everywhere & in_pages


def test_a_long_sentence_of_a_page_is_found(words: Any) -> None:
    long = "The gang starts " + "again and " * 20 + "again."
    found_in = list(words.long_sentences("page.md", f"# Title\n\nShort. {long}\n\n- An item. {long}\n"))
    assert [place.line for place in found_in] == [3, 5]
    assert all("44 words" in place.instead for place in found_in)


def test_code_tables_headings_and_lists_of_names_do_not_make_a_sentence_long(words: Any) -> None:
    many = "word " * 40
    names = ", ".join(["`NAME`"] * 40)
    page = (
        f"# {many}\n\n| {many} |\n\n    {many}\n\n```text\n{many}\n```\n\nThe variables are {names} and `LAST`.\n"
        f"[A link](a/{'very-' * 10}long/page.md) leads on. `{many}` is code.\n"
    )
    assert not list(words.long_sentences("page.md", page))
    assert not list(words.long_sentences("page.md", f"It quotes {many}  <!-- words: ok -->\n"))


SOURCE = '''"""It tells all."""
class Part:
    """What somebody wants."""
    name: Annotated[str, Meta(description="The program says so.", extra={"says": "it knows a name"})]
def run(
    force: Annotated[bool, option("--force", help="Nobody asks, `says` is quoted.")] = False,
) -> None:
    """It goes on."""
    told = "a message heard this"  # the comment says so
'''


def words_of_interface(words: Any, name: str, text: str) -> list[str]:
    return sorted(place.word for place in words.interface_places(name, text))


def test_words_for_pages_are_errors_in_help_descriptions_messages_and_docstrings(words: Any) -> None:
    assert words_of_interface(words, "src/unidle/place/x.py", SOURCE) == [
        "asks",
        "goes on",
        "heard",
        "knows",
        "nobody",
        "says",
        "somebody",
        "tells",
        "wants",
    ]


def test_a_long_sentence_of_a_description_is_found(words: Any) -> None:
    text = f"x: Annotated[int, Meta(description='The number of {'very ' * 30}long rows.')]\n"
    assert [place.line for place in words.interface_places("src/unidle/place/x.py", text)] == [1]
    assert not list(words.interface_places("src/unidle/place/x.py", f"def f():\n    'A {'very ' * 40}.'\n"))
