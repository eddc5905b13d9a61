"""A file is read within bounds, and whatever is wrong with it is said in one line."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.files.document import Bounds, Document
from unidle.files.load import load_document
from unidle.files.tree import parse, resolve

BOUNDS = Bounds()


def refused(path: Path | str, bounds: Bounds = BOUNDS) -> str:
    with pytest.raises(BadInput) as caught:
        load_document(path, what="job", bounds=bounds)
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.remedy
    assert caught.value.exit_code == 2
    return line


def refused_text(text: str, bounds: Bounds = BOUNDS) -> str:
    with pytest.raises(BadInput) as caught:
        parse(text, "job.yaml", "job", bounds)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def data(text: str) -> object:
    return parse(text, "job.yaml", "job", BOUNDS).data


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    return path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.yaml")


def test_a_path_with_a_line_feed_stays_one_line(tmp_path: Path) -> None:
    assert "a\\nb.yaml" in refused(tmp_path / "a\nb.yaml")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "\udcff"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    assert "path" in refused(path) or "cannot be read" in refused(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in refused(tmp_path)


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "is a FIFO" in refused(tmp_path / "fifo")


def test_a_device_is_refused() -> None:
    assert "is a device" in refused("/dev/zero")


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert "socket" in refused("socket")


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b"command: [a]")
    path.chmod(0)
    tmp_path.chmod(0o711)
    for above in tmp_path.parents[:2]:
        above.chmod(0o711)
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from unidle.errors import BadInput\n"
        "from unidle.files.document import Bounds; from unidle.files.load import load_document\n"
        "from unidle.files import tree\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: load_document(sys.argv[1], what='job', bounds=Bounds())\n"
        "except BadInput as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path), *sys.path], capture_output=True, text=True, check=True
    )
    assert "may not be read" in ran.stdout


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    assert "too large" in refused(path)


def test_a_file_that_grows_without_end_is_refused() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from unidle.errors import BadInput\n"
        "from unidle.files.document import Bounds; from unidle.files.load import load_document\n"
        "try: load_document('-', what='job', bounds=Bounds())\n"
        "except BadInput as error: print(error)\n"
    )
    with Path("/dev/zero").open("rb") as endless:
        ran = subprocess.run(
            [sys.executable, "-c", code, *sys.path], stdin=endless, capture_output=True, text=True, check=True
        )
    assert ran.stdout.startswith("standard input: the file is too large")


@pytest.mark.parametrize("content", [b"", b" \n\n", b"# nothing\n", b"---\n", b"\xef\xbb\xbf", b"~"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "empty" in refused(write(tmp_path, content))


def test_utf_16_is_named(tmp_path: Path) -> None:
    assert "UTF-16" in refused(write(tmp_path, "command: [a]".encode("utf-16")))


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01\0", b"a: \0", b"a: \x1b[2J", "a: \uffff".encode()])
def test_binary_content_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "not text" in refused(write(tmp_path, content))


def test_bytes_that_are_no_utf_8_are_refused_with_their_line(tmp_path: Path) -> None:
    assert "job.yaml:2: not text in UTF-8: byte 0xff" in refused(write(tmp_path, b"a: 1\nb: \xff\n"))


def test_a_byte_order_mark_and_dos_line_ends_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    assert load_document(path, what="job", bounds=BOUNDS).data == {"a": 1, "b": "x"}


def test_json_is_fine() -> None:
    assert data('{\n\t"a": [1, 2.5e-3, true, null, "\\u00e9\\/"]\n}') == {"a": [1, 0.0025, True, None, "é/"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("3e-4", 3e-4),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("TRUE", True),
        ("~", None),
        ("-.inf", -math.inf),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_the_word_on_is_a_name_like_any_other() -> None:
    assert data("restart: {on: [any]}") == {"restart": {"on": ["any"]}}


def test_quoted_numbers_are_text() -> None:
    assert data("""['1', "2", !!str 3, ! 4]""") == ["1", "2", "3", "4"]


def test_a_duplicate_field_is_refused_with_both_lines() -> None:
    line = refused_text("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert line.startswith("job.yaml:5: b.c: the field is given twice, first on line 3")


@pytest.mark.parametrize("key", ["1", "true", "null", "[a]", "{a: 1}", ""])
def test_the_name_of_a_field_must_be_text(key: str) -> None:
    assert "must be text" in refused_text(f"? {key}\n: 1\n")


@pytest.mark.parametrize("value", [".nan", "-.inf", "1e999", "9" * 30, "9" * 5000])
def test_a_number_that_is_none_or_too_large_is_refused(value: str) -> None:
    assert refused_text(f"a: {value}").startswith("job.yaml:1: a: ")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_refused(opening: str) -> None:
    assert "nested too deeply" in refused_text(opening * 50_000)


def test_nesting_by_aliases_is_refused() -> None:
    links = [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 40)]
    assert "nested too deeply" in refused_text("\n".join(["a0: &a0 [x]", *links]))


def test_aliases_that_multiply_are_refused() -> None:
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "too many values" in refused_text("\n".join(["a0: &a0 x", *layers]))


def test_aliases_within_bounds_are_fine() -> None:
    assert data("a: &x {k: 1}\nb: *x\nc: [*x]") == {"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}]}


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: *y"])
def test_an_alias_without_an_anchor_before_it_is_refused(text: str) -> None:
    assert "no anchor before it" in refused_text(text)


@pytest.mark.parametrize(
    "text",
    ["!!python/object/apply:os.system [x]", "a: !mine x", "a: !!binary eA==", "a: !!set {x}", "!!map [a]"],
)
def test_other_tags_are_refused(text: str) -> None:
    assert "is not allowed here" in refused_text(text)


def test_a_value_must_be_what_its_tag_says() -> None:
    assert "!!int says" in refused_text("a: !!int x")
    assert data("a: !!float 3") == {"a": 3}


def test_a_second_document_is_refused() -> None:
    assert refused_text("a: 1\n---\nb: 2\n").startswith("job.yaml:2: a second document")


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\ta: 1", "a: 'x", "%FOO\n---\na: 1", "a: n[1-2]]\n- "])
def test_bad_syntax_is_refused_with_its_line(text: str) -> None:
    line = refused_text(text)
    assert "not valid YAML" in line
    assert line.startswith("job.yaml:")


def test_a_mark_names_the_line_and_how_a_number_was_written() -> None:
    document = parse("a: 1\nb:\n  - x\n  - 3e-4\n", "job.yaml", "job", BOUNDS)
    mark = document.mark(("b", 1))
    assert mark is not None
    assert (mark.line, mark.written) == (4, "3e-4")
    assert str(document.error(("b", 7), "is wrong")) == "job.yaml:2: b[7]: is wrong"


def test_an_error_without_a_file_has_no_line() -> None:
    assert str(Document({"a": 1}, "command line").error(("a",), "is wrong", value=1)) == (
        "command line: a: is wrong (got 1)"
    )
