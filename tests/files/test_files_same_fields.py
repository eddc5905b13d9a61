"""A field of a file with the name that the object has for it needs no line of its own."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from unidle.files.check import same_fields, with_same_fields


class Part(Struct, kw_only=True):
    size: int = 1
    name: str = "a"
    only_in_the_file: bool = False


@dataclass(frozen=True)
class Object:
    name: str
    size: int
    more: int = 0


def test_fields_of_one_name_are_taken_over() -> None:
    assert with_same_fields(Object, Part(size=3)) == Object("a", 3)


def test_a_converted_field_takes_precedence() -> None:
    assert with_same_fields(Object, Part(), size=7, more=2) == Object("a", 7, 2)


def test_only_fields_that_both_have_are_shared() -> None:
    assert same_fields(Object, Part()) == {"size": 1, "name": "a"}
