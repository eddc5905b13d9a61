"""``python -m unidle.span.rank PLAN.json --device D --out DIR``, or ``--single --out DIR [--against DIR]``, or ``--describe``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from unidle.errors import BadInput, CannotRun
from unidle.span.rank.environment import give_up_s, secret_of_run, start_s
from unidle.span.rank.mesh import Mesh
from unidle.span.rank.plan import PlanDevice, RunPlan
from unidle.span.rank.read_plan import read_plan
from unidle.span.rank.records import Records
from unidle.span.wan import PortTaken, Refused, WanError

DONE, WRONG, FAILED, CANNOT, LOST, STOPPED = 0, 2, 1, 3, 75, 143
_FLUSH_S, _LEAVE_S = 10.0, 0.5  # what was sent is waited for: at a good end, and at a bad one


class _Stop(BaseException):
    """SIGTERM came."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 done, 2 error in the plan or the model, 3 the end could not be saved, 75 a link or a peer
    was lost, 143 stopped by a signal.
    """
    parser = argparse.ArgumentParser(prog="unidle.span.rank", description="One rank of a run across sites.")
    parser.add_argument("plan", metavar="PLAN.json")
    parser.add_argument("--device", help="which device of the plan this is")
    parser.add_argument("--out", help="directory for records")
    parser.add_argument("--single", action="store_true", help="train the same in one process, to compare")
    parser.add_argument("--against", help="with --single: compare its final state with the checkpoints here")
    parser.add_argument(
        "--describe", action="store_true", help="print layers, their bytes and the digest of the model"
    )
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        plan = read_plan(given.plan)
        if given.describe:
            return _describe(plan)
        if given.out is None or (given.device is None) == (not given.single):
            raise BadInput(
                "needs --out and either --device or --single", field="arguments", remedy="see --help"
            )
        if given.single:
            return _single(plan, given.out, given.against)
        return _rank(plan, plan.named(given.device), given.out)
    except BadInput as error:
        print(f"unidle span: {error}", file=sys.stderr, flush=True)
        return WRONG
    except _Stop:
        return STOPPED


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """While PyTorch is imported nothing becomes garbage: looking for it again and again is a fifth of the import's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # what was imported stays
        gc.enable()


def _describe(plan: RunPlan) -> int:
    with _loading():
        from unidle.span.rank.model import layer_bytes
        from unidle.span.rank.trainer import built

    try:
        layers, digest = built(plan, "meta")  # a large model needs no memory then
    except BadInput:
        layers, digest = built(plan)
    print(json.dumps({"layers": len(layers), "bytes": layer_bytes(layers), "digest": digest}), flush=True)
    return DONE


def _single(plan: RunPlan, out: str, against: str | None) -> int:
    with _loading():
        from unidle.span.rank.reference import Single, compared

    records, kept = Records(out, "single"), os.path.join(out, "single")
    try:
        Single(plan, records, kept).run()
        if against is not None:
            records.write("compared", **compared(kept, against, plan.steps))
        records.write("end", why="done", because="all steps are done")
    except CannotRun as error:
        _say(str(error))
        return CANNOT
    finally:
        records.close()
    return DONE


def _say(text: str) -> None:
    print(f"unidle span: {text}", file=sys.stderr, flush=True)


def _rank(plan: RunPlan, me: PlanDevice, out: str) -> int:
    records, mesh = Records(out, me.name), None
    code, why, because, peer = DONE, "done", "all steps are done", ""
    try:
        mesh = _mesh(plan, me)
        _train(plan, me, mesh, records)
    except (Exception, _Stop) as error:
        code, why, because, peer = _verdict(me, mesh, error)
        if code == FAILED:
            traceback.print_exc()
        elif code != STOPPED:
            _say(because)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        records.write("end", why=why, because=because, **({"peer": peer} if peer else {}))
        if mesh is not None:
            mesh.close(_FLUSH_S if code == DONE else _LEAVE_S)
        records.close()
    return code


def _verdict(me: PlanDevice, mesh: Mesh | None, error: BaseException) -> tuple[int, str, str, str]:
    """Exit code, why and because of the last record, and the peer that was lost."""
    if isinstance(error, BadInput):
        return WRONG, "wrong", str(error), ""
    if isinstance(error, CannotRun):
        return CANNOT, "error", str(error), ""
    if isinstance(error, (PortTaken, Refused)):
        return WRONG, "refused", f"{me.name}: {error}", ""
    if isinstance(error, WanError):
        peer, why = mesh.lost() if mesh is not None else ("", "link")
        return LOST, why, f"{me.name}: {error}; continues from the last checkpoint", peer
    if isinstance(error, _Stop):
        return STOPPED, "stopped", f"{me.name} received SIGTERM", ""
    return FAILED, "error", f"{type(error).__name__}: {error}", ""


def _mesh(plan: RunPlan, me: PlanDevice) -> Mesh:
    try:
        return Mesh(plan, me, secret_of_run(), give_up_s(), start_s())
    except OSError as error:
        raise BadInput(
            f"cannot be listened on: {error.strerror}", field=f"address of {me.name}", value=":".join(map(str, me.address)),
            remedy="give an address of this host",
        ) from None  # fmt: skip


def _train(plan: RunPlan, me: PlanDevice, mesh: Mesh, records: Records) -> None:
    with _loading():
        from unidle.span.rank.model import check_shared
        from unidle.span.rank.runner import Runner
        from unidle.span.rank.trainer import built

    layers, digest = built(plan)
    cuts = plan.cuts(len(layers))
    check_shared([layers[first:end] for first, end in cuts])
    mesh.wait_open()
    told = mesh.gather(digest)
    if set(told) != {digest}:
        other = next(k for k, each in enumerate(told) if each != digest)
        raise BadInput(
            f"{plan.devices[other].name} built another model than {me.name}", field="model.digest", value=told[other][:16],
            remedy="give all ranks the same files",
        )  # fmt: skip
    runner = Runner(plan, me, mesh, layers, digest, records)
    del layers
    runner.run(_say)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # channels and files are closed; unloading PyTorch takes half a second of CPU for nothing
