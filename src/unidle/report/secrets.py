"""What must not stand on a page: values that are secret by their name, or by what they look like. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

HIDDEN: Final = "(hidden)"

_WORDS: Final = frozenset(
    {"token", "secret", "secrets", "password", "passwd", "passphrase", "passcode", "pass", "pw", "pwd", "key", "keys", "apikey",
     "credential", "credentials", "creds", "auth", "authorization", "bearer", "cookie", "dsn", "pat", "signature", "salt"}
)  # fmt: skip
_INSIDE: Final = re.compile(
    r"(?i)passw(or)?d|passphrase|secret|api_?-?key|access_?-?key|private_?-?key|credential|authtoken"
)
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LOOKS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)
_IN_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@")
_HEADER: Final = re.compile(r"(?i)\b((?:authorization:\s*)?(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}")
_OPTION: Final = re.compile(r"(--?[A-Za-z][\w.-]*|[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_SHORTEST: Final = 6


def names_a_secret(name: str) -> bool:
    """Whether a variable or option of this name holds something secret: ``HF_TOKEN``, ``--api-key``, ``dbPassword``."""
    return bool(_INSIDE.search(name)) or any(part.lower() in _WORDS for part in _PARTS.findall(name))


class Mask:
    """Hides the secrets of one job wherever they come up: in its environment, its command, its output."""

    def __init__(self, env: Mapping[str, str], command: Sequence[str] = ()) -> None:
        found = {value for name, value in env.items() if names_a_secret(name)}
        found |= {value for _, value in _given(command)}
        values = sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, values))) if values else None

    def text(self, text: str) -> str:
        """The text without what is secret."""
        if self._values is not None:
            text = self._values.sub(HIDDEN, text)
        text = _IN_URL.sub(rf"\g<1>{HIDDEN}@", text)
        return _LOOKS.sub(HIDDEN, _HEADER.sub(rf"\g<1>{HIDDEN}", text))

    def value(self, name: str, value: str) -> str:
        """A variable's value; hidden if the name marks it as a secret."""
        return HIDDEN if value and names_a_secret(name) else self.text(value)

    def command(self, command: Sequence[str]) -> tuple[str, ...]:
        """The words of a command line, without the values of options that are secret by their name."""
        hidden = {at for at, _ in _given(command)}
        words = []
        for at, word in enumerate(command):
            option = _OPTION.fullmatch(word)
            if at in hidden:
                words.append(f"{option[1]}={HIDDEN}" if option else HIDDEN)
            else:
                words.append(self.text(word))
        return tuple(words)


def _given(command: Sequence[str]) -> list[tuple[int, str]]:
    """Where a command line holds secrets, and their values: ``--token X``, ``--token=X``, ``TOKEN=X``."""
    found = []
    for at, word in enumerate(command):
        option = _OPTION.fullmatch(word)
        if option is not None and option[2] and names_a_secret(option[1]):
            found.append((at, option[2]))
        elif at and _is_secret_option(command[at - 1]) and not word.startswith("-"):
            found.append((at, word))
    return found


def _is_secret_option(word: str) -> bool:
    return word.startswith("--") and "=" not in word and names_a_secret(word)
