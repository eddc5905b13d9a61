"""Whose the token of a pod is: asked of the cluster by TokenReview, in a thread, and remembered for a while.

The hub's thread calls :meth:`TokenReviews.refusal`, which never waits. A token speaks for the one box that its pod is:
the pod's name follows from job and node. That of an agent speaks for the node of its pod, if it is of the agents' service account.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unidle.engine.kube.manifest import AGENT_ACCOUNT, AUDIENCE, PodSettings, pod_name
from unidle.hub import frames
from unidle.kube.protocol import ApiRequest, Client, KubeError

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
KEPT_S: Final = 60.0
"""So long a good answer counts: a pod that was deleted since cannot be taken for one that runs, as its box is fenced by its lease."""
_REFUSED_S: Final = 5.0
_TIMEOUT_S: Final = 5.0
_MOST_KNOWN: Final = 20_000
_MOST_ASKED: Final = 2_000
_THREADS: Final = 2
_EXTRA: Final = "authentication.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """Whose a token is, by the word of the cluster: of a pod with a service account. ``why``: why it is no good."""

    account: str = ""
    pod: str = ""
    namespace: str = ""
    uid: str = ""
    node: str = ""
    why: str = ""


class TokenReviews:
    """A :class:`unidle.hub.vouching.Voucher`. ``client`` is used by its threads alone, and closed with them."""

    def __init__(self, client: Client, settings: PodSettings) -> None:
        self._client, self._settings = client, settings
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[TokenOwner, float]] = OrderedDict()
        self._asked: set[bytes] = set()
        self._queue: queue.SimpleQueue[tuple[bytes, str, Callable[[], None]] | None] = queue.SimpleQueue()
        self.asked = 0  # requests that were sent
        self._threads = [
            threading.Thread(target=self._work, name="unidle-token-reviews", daemon=True)
            for _ in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def knows(self, hello: frames.Hello) -> bool:
        """Whether a token may be that of a pod."""
        return hello.kind == "box" or (hello.kind == "agent" and hello.token.count(".") == 2)

    def refusal(self, hello: frames.Hello, wake: Callable[[], None]) -> str | None:
        """Why the token of a box or an agent is not good, empty where it is; None while that is asked. Called by the hub's thread."""
        if hello.token.count(".") != 2:
            return "the token is neither of this hub nor of a service account"
        key = hashlib.sha256(hello.token.encode(errors="replace")).digest()
        with self._lock:
            owner = self._owner(key)
            if owner is None:
                if key not in self._asked:
                    if len(self._asked) >= _MOST_ASKED:
                        return "too many tokens are being reviewed"
                    self._asked.add(key)
                    self._queue.put((key, hello.token, wake))
                return None
        return owner.why or self._differs(owner, hello)

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        self._client.close()
        for thread in self._threads:
            thread.join()

    def _owner(self, key: bytes) -> TokenOwner | None:
        found = self._known.get(key)
        if found is None or found[1] < time.monotonic():
            return None
        return found[0]

    def _differs(self, owner: TokenOwner, hello: frames.Hello) -> str:
        if hello.kind == "agent":
            agents = self._settings.agents or (self._settings.namespace, AGENT_ACCOUNT)
            if (owner.namespace, owner.account) != agents:
                return f"the token is of service account {owner.namespace}/{owner.account}, and agents have {'/'.join(agents)}"
            return (
                "" if owner.node == hello.node else f"the token is of a pod on node {owner.node or 'unknown'}"
            )
        wanted = pod_name(self._settings.controller, hello.job, hello.node)
        if (owner.namespace, owner.pod) != (self._settings.namespace, wanted):
            return f"the token is of pod {owner.namespace}/{owner.pod}, which is not the box of this job on this node"
        if owner.node not in ("", hello.node):
            return f"the token is of a pod on node {owner.node}"
        return ""

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            key, token, wake = job
            owner = self._review(token)
            with self._lock:
                self._asked.discard(key)
                if owner is not None:
                    until_s = time.monotonic() + (_REFUSED_S if owner.why else KEPT_S)
                    self._known[key] = (owner, until_s)
                    self._known.move_to_end(key)
                    while len(self._known) > _MOST_KNOWN:
                        self._known.popitem(last=False)
            if owner is not None:
                wake()

    def _review(self, token: str) -> TokenOwner | None:
        """None where the cluster does not answer: the box dials again."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        self.asked += 1
        try:
            request = ApiRequest("create", "POST", PATH, "tokenreviews", body=msgspec.json.encode(body))
            answer = msgspec.json.decode(self._client.call(request, _TIMEOUT_S))
        except KubeError as error:
            return None if error.may_pass else TokenOwner(why=f"the cluster reviews no tokens: {error}")
        except msgspec.DecodeError:
            return None
        return owner_of(answer)


def owner_of(answer: Any) -> TokenOwner:
    """The owner in the answer to a TokenReview."""
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict) or status.get("authenticated") is not True:
        error = str((status or {}).get("error", "") if isinstance(status, dict) else "")
        return TokenOwner(why=f"the cluster does not accept the token{f': {error[:200]}' if error else ''}")
    if AUDIENCE not in (status.get("audiences") or ()):
        return TokenOwner(why=f"the token is not for {AUDIENCE}")
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    words = str(user.get("username", "")).split(":")

    def first(name: str) -> str:
        values = extra.get(_EXTRA + name) or [""]
        return str(values[0])

    if words[:2] != ["system", "serviceaccount"] or len(words) != 4 or not first("pod-name"):
        return TokenOwner(why="the token is not bound to a pod")
    return TokenOwner(words[3], first("pod-name"), words[2], first("pod-uid"), first("node-name"))
