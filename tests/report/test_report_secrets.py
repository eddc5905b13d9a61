"""No page shows what is secret by its name or by its look."""

from __future__ import annotations

import pytest

from unidle.report.secrets import HIDDEN, Mask, names_a_secret


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DB_PASS", "mysql_pwd", "--api-key", "dbPassword",
     "AUTH", "SESSION_COOKIE", "GITHUB_PAT", "private_key_file", "APIKEY", "SENTRY_DSN", "OpenAIKey"],
)  # fmt: skip
def test_a_name_that_speaks_of_a_secret_is_known(name: str) -> None:
    assert names_a_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "NUM_TOKENS",
        "OMP_NUM_THREADS",
        "KEYBOARD",
        "PATH",
        "MONKEY",
        "COMPASS",
        "AUTHOR",
        "--lr",
    ],
)
def test_a_plain_name_is_left_alone(name: str) -> None:
    assert not names_a_secret(name)


def test_a_secret_is_hidden_wherever_it_comes_up() -> None:
    command = (
        "python",
        "t.py",
        "--token",
        "tok-12345",
        "--api-key=key-12345",
        "PASS=pw-12345",
        "--lr",
        "0.1",
        "--token",
    )
    mask = Mask({"MY_SECRET": "env-12345", "URL": "redis://u:p4ss@h/0", "SHORT_KEY": "a"}, command)
    assert mask.command(command) == (
        "python", "t.py", "--token", HIDDEN, f"--api-key={HIDDEN}", f"PASS={HIDDEN}", "--lr", "0.1", "--token",
    )  # fmt: skip
    assert mask.value("MY_SECRET", "env-12345") == HIDDEN
    assert mask.value("URL", "redis://u:p4ss@h/0") == f"redis://u:{HIDDEN}@h/0"
    assert mask.text("env-12345 tok-12345 key-12345 pw-12345 banana") == " ".join([HIDDEN] * 4) + " banana"
    assert mask.value("EMPTY_TOKEN", "") == ""


@pytest.mark.parametrize(
    "text",
    ["hf_abcdefghijklmnopqrstuvwxyz", "ghp_abcdefghijklmnopqrst1234", "sk-abcdefghijklmnopqrstuvwx", "AKIAABCDEFGHIJKLMNOP",
     "Authorization: Bearer abc.def-ghi", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJ"],
)  # fmt: skip
def test_what_looks_like_a_credential_is_hidden_anywhere(text: str) -> None:
    shown = Mask({}).text(f"before {text} after")
    assert text.split()[-1] not in shown and HIDDEN in shown
    assert shown.startswith("before ") and shown.endswith(" after")
