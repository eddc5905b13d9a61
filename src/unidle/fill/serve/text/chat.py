"""The chat template of a model: messages to one prompt. Templates are run in Jinja's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from unidle.errors import BadInput
from unidle.fill.serve.model.config import read_object


class ChatTemplate:
    """The template in ``chat_template.jinja`` or ``tokenizer_config.json``; ``present`` is False where a model has none."""

    def __init__(self, directory: Path) -> None:
        settings = read_object(directory / "tokenizer_config.json")
        text = _template(directory, settings)
        self.present = text is not None
        self._tokens = {
            name: _content(settings.get(name))
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
        try:
            self._template = environment.from_string(text or "")
        except TemplateError as error:
            raise BadInput(
                f"is no valid template: {error}",
                field="chat_template",
                value=str(directory),
                remedy="copy the model again",
            ) from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a conversation. Errors: ValueError with the template's reason for messages that it refuses."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except (TemplateError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _content(token: object) -> str:
    """A token is a string, or an object with it."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
