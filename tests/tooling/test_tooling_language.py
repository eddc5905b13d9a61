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
