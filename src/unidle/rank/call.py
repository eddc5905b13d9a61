"""``python -m unidle.rank.call FILE``: the program of a rank whose job is a Python function (see
``unidle.api.function_call``).

The file holds the function with its arguments and the caller's ``sys.path``. What the function of rank 0 returns is kept
next to it as ``result``. An exception is printed without the frames of this module, and ends the rank with exit code 1.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
import traceback

from unidle.atomic import replaced

CALL = "call"
RESULT = "result"


def main(path: str) -> int:
    """Call the function once, in this rank. Returns the exit code."""
    with open(path, "rb") as file:
        order = pickle.load(file)  # noqa: S301 - the user's own function, from a file that only the user can write
    if order["python"] != sys.version_info[:2]:
        wanted, here = (".".join(map(str, version)) for version in (order["python"], sys.version_info[:2]))
        print(f"unidle: the function was shipped by Python {wanted}, and this is {here}", file=sys.stderr)
        return 1
    sys.path[:] = order["path"]
    sys.argv[1:] = []  # the file is no argument of the function's
    for name, text in order["sources"].items():  # so that tracebacks show lines of a notebook, too
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        function, args, kwargs = pickle.loads(order["call"])  # noqa: S301
        value = function(*args, **kwargs)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(_awaited(value))
    except Exception as error:
        frames = error.__traceback__
        traceback.print_exception(type(error), error, frames.tb_next if frames is not None else None)
        return 1
    if os.environ.get("RANK", "0") == "0":
        _keep(os.path.join(os.path.dirname(path), RESULT), value)
    return 0


async def _awaited(value: object) -> object:
    return await value  # type: ignore[misc]


def _keep(path: str, value: object) -> None:
    """Write what was returned, whole or not at all. A value that cannot be written does not fail a training that succeeded."""
    answer: dict[str, object]
    try:
        from cloudpickle import dumps

        answer = {"value": dumps(value)}
    except Exception as error:
        answer = {"why_not": f"{type(error).__name__}: {error}", "type": type(value).__qualname__}
    try:
        with replaced(path) as file:
            pickle.dump(answer, file)
    except OSError as error:
        print(f"unidle: the result of rank 0 could not be written: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
