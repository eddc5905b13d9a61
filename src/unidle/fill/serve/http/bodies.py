"""The bodies of requests, field by field, with their bounds. Other fields are refused: what is ignored would be a wrong answer."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from unidle.fill.serve.http.errors import ApiError, bad

MOST_SAMPLES: Final = 128
MOST_STOPS: Final = 16

_Count = Annotated[int, Meta(ge=1)]
_Samples = Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_Share = Annotated[float, Meta(gt=0, le=1)]
_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Zero = Annotated[float, Meta(ge=0, le=0)]
_Stop = str | Annotated[list[str], Meta(max_length=MOST_STOPS)] | None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False


class SharedBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of request have. Penalties are known, and refused above 0."""

    model: str
    max_tokens: _Count | None = None
    temperature: _Temperature | None = None
    top_p: _Share | None = None
    n: _Samples | None = None
    seed: _Seed | None = None
    stop: _Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: _Zero | None = None
    frequency_penalty: _Zero | None = None
    user: str | None = None


class CompletionBody(SharedBody, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/completions``. ``prompt``: text, tokens, or a list of either."""

    prompt: Any = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] | None = None


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[ContentPart]
    name: str | None = None


class ChatBody(SharedBody, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


_Body = TypeVar("_Body", CompletionBody, ChatBody)


def decoded(raw: bytes, kind: type[_Body]) -> _Body:
    """The body. Errors: :class:`ApiError` that names the field."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"We could not parse the JSON body of your request: {error}") from error


def _invalid(text: str) -> ApiError:
    """msgspec names the place last: ``Expected `int` >= 1 - at `$.max_tokens```; what is missing or unknown it quotes."""
    problem, _, place = text.partition(" - at `$")
    field = place.strip("`").lstrip(".") or None
    for known in ("Object contains unknown field `", "Object missing required field `"):
        if problem.startswith(known):
            name = problem.removeprefix(known).rstrip("`")
            field = f"{field}.{name}" if field else name
            verb = "Unknown" if "unknown" in known else "Missing required"
            return bad(
                f"{verb} parameter: '{field}'.",
                field,
                "unknown_parameter" if verb == "Unknown" else "missing_required_parameter",
            )
    return (
        bad(f"Invalid value of '{field}': {problem}.", field, "invalid_value")
        if field
        else bad(f"Invalid request: {problem}.")
    )
