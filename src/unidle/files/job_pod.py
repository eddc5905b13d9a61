"""The ``pod`` mapping of the job file: what a job needs of its pods on a Kubernetes cluster."""

from __future__ import annotations

import posixpath
from typing import Annotated, Final

from msgspec import Meta, Struct

from unidle.files.document import Document
from unidle.files.values import END, MEMORY_LIMIT_BYTES, MEMORY_SAYS, MemoryText, memory_bytes
from unidle.jobs.pod import (
    ImagePull,
    MountKind,
    PodEnvSource,
    PodMount,
    PodPython,
    PodToleration,
    PodWish,
    TaintEffect,
)

_PART: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
ObjectName = Annotated[
    str,
    Meta(
        pattern=rf"^{_PART}(\.{_PART})*{END}",
        max_length=253,
        extra={"says": "the name of an object of the cluster: a-z, 0-9, '-' and '.'"},
    ),
]
_Key = Annotated[
    str,
    Meta(
        pattern=rf"^({_PART}(\.{_PART})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?{END}",
        max_length=317,
        extra={"says": "a key of the cluster, such as zone or example.com/zone"},
    ),
]
_ForeignKey = Annotated[
    str,
    Meta(
        pattern=rf"^(?!unidle\.dev/)({_PART}(\.{_PART})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?{END}",
        max_length=317,
        extra={"says": "a key of the cluster that does not begin with unidle.dev/"},
    ),
]
_LabelValue = Annotated[
    str,
    Meta(
        pattern=rf"^([A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?)?{END}",
        extra={"says": "up to 63 letters, digits, '-', '_' and '.'"},
    ),
]
_MountPath = Annotated[
    str,
    Meta(
        pattern=r"^/[^:\x00-\x1f\x7f]*" + END,
        max_length=4095,
        extra={"says": "an absolute path without a colon", "remedy": "write the path in full"},
    ),
]
_Size = Annotated[
    Annotated[int, Meta(ge=1, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText,
    Meta(extra={"says": f"{MEMORY_SAYS}, at most 1 PiB"}),
]
_KINDS: Final[tuple[MountKind, ...]] = ("claim", "secret", "config_map", "host_path", "memory", "empty")


class PodVolumePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One volume and where it is mounted. Exactly one of claim, secret, config_map, host_path, memory and empty."""

    mount: Annotated[_MountPath, Meta(description="Where it is mounted.", examples=["/data"])]
    claim: Annotated[ObjectName | None, Meta(description="Name of a PersistentVolumeClaim.")] = None
    secret: Annotated[ObjectName | None, Meta(description="Name of a Secret.")] = None
    config_map: Annotated[ObjectName | None, Meta(description="Name of a ConfigMap.")] = None
    host_path: Annotated[_MountPath | None, Meta(description="Path on the node.")] = None
    memory: Annotated[
        _Size | None, Meta(description="Size of a file system in memory.", examples=["8GiB"])
    ] = None
    empty: Annotated[
        bool, Meta(description="A directory of the node that is empty at first and ends with the pod.")
    ] = False
    read_only: Annotated[bool, Meta(description="Whether it cannot be written to.")] = False
    sub_path: Annotated[
        Annotated[
            str,
            Meta(
                pattern=rf"^(?!/)(?!\.\.(/|$))(?!.*/\.\.(/|$))[^:\x00-\x1f\x7f]+{END}",
                max_length=4095,
                extra={"says": "a relative path that stays inside"},
            ),
        ]
        | None,
        Meta(description="Path within the volume that is mounted.", examples=["datasets/c4"]),
    ] = None


class PodEnvPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All entries of a Secret or a ConfigMap as environment variables. Exactly one of secret and config_map."""

    secret: Annotated[ObjectName | None, Meta(description="Name of a Secret.")] = None
    config_map: Annotated[ObjectName | None, Meta(description="Name of a ConfigMap.")] = None
    prefix: Annotated[
        str,
        Meta(
            pattern=rf"^([A-Za-z_][A-Za-z0-9_]*)?{END}",
            max_length=253,
            description="Put in front of each name.",
            extra={"says": "letters, digits and '_', not first a digit"},
        ),
    ] = ""


class PodTolerationPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A taint of nodes that the pods tolerate, so that they are not evicted because of it. See also `tolerate`, for the placement."""

    key: Annotated[_Key | None, Meta(description="Key of the taint. Default: all keys.")] = None
    value: Annotated[_LabelValue | None, Meta(description="Value of the taint. Default: any.")] = None
    effect: Annotated[TaintEffect | None, Meta(description="Effect of the taint. Default: all.")] = None
    seconds: Annotated[
        Annotated[int, Meta(ge=0, le=10**9)] | None,
        Meta(description="With NoExecute: for how long. Default: always."),
    ] = None


class PodPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The pods of the job on a Kubernetes cluster. Without one, this part has no effect."""

    image: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*" + END,
                max_length=1000,
                extra={"says": "the name of an image"},
            ),
        ]
        | None,
        Meta(
            description="Container image of the ranks. It needs nothing of unidle, and no Python. Default: --image of `unidle up`.",
            examples=["ghcr.io/example/train:1.4"],
        ),
    ] = None
    image_pull_policy: Annotated[
        ImagePull | None,
        Meta(description="When the node pulls the image. Default: that of the cluster."),
    ] = None
    python: Annotated[
        PodPython,
        Meta(
            description="The Python that starts the ranks, whatever these are: unidle's own, or python3 of the image (3.8 or newer), for an image whose LD_PRELOAD needs its own C library."
        ),
    ] = "own"
    image_pull_secrets: Annotated[
        tuple[ObjectName, ...],
        Meta(
            max_length=100, description="Secrets with credentials of the registry.", examples=[["registry"]]
        ),
    ] = ()
    volumes: Annotated[
        tuple[PodVolumePart, ...],
        Meta(
            max_length=200,
            description="Volumes and where they are mounted.",
            examples=[[{"mount": "/data", "claim": "datasets", "read_only": True}]],
        ),
    ] = ()
    env_from: Annotated[
        tuple[PodEnvPart, ...],
        Meta(
            max_length=100,
            description="Secrets and ConfigMaps whose entries the ranks have as environment variables. `env` takes "
            "precedence.",
            examples=[[{"secret": "wandb"}]],
        ),
    ] = ()
    service_account: Annotated[
        ObjectName | None, Meta(description="Service account of the pods. Default: that of the namespace.")
    ] = None
    tolerations: Annotated[
        tuple[PodTolerationPart, ...], Meta(max_length=200, description="Taints that the pods tolerate.")
    ] = ()
    node_selector: Annotated[
        dict[_Key, _LabelValue],
        Meta(
            max_length=100,
            description="Labels that the node must have, with their values. They are added to node_labels.",
            examples=[{"zone": "a"}],
        ),
    ] = {}
    resources: Annotated[
        dict[_Key, Annotated[int, Meta(ge=1, le=1_000_000)]],
        Meta(
            max_length=100,
            description="Extended resources of the cluster that each rank needs in addition to devices.",
            examples=[{"rdma/hca": 1}],
        ),
    ] = {}
    labels: Annotated[
        dict[_ForeignKey, _LabelValue], Meta(max_length=100, description="Labels of the pods.")
    ] = {}
    annotations: Annotated[
        dict[_ForeignKey, Annotated[str, Meta(max_length=65_536)]],
        Meta(max_length=100, description="Annotations of the pods."),
    ] = {}
    priority_class: Annotated[ObjectName | None, Meta(description="PriorityClass of the pods.")] = None
    run_as_user: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        Meta(
            description="User id of the ranks. Default: that of the image, which must not be root. 0: root, where the cluster allows it."
        ),
    ] = None
    fs_group: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Group that the pods' volumes belong to, so that ranks can write to them."),
    ] = None
    capabilities: Annotated[
        tuple[
            Annotated[
                str, Meta(pattern=r"^[A-Z][A-Z_]{1,40}" + END, extra={"says": "a capability, without CAP_"})
            ],
            ...,
        ],
        Meta(
            max_length=50,
            description="Capabilities of the ranks, such as IPC_LOCK for RDMA. Without any, pods fulfil the level `restricted` of Pod Security.",
            examples=[["IPC_LOCK"]],
        ),
    ] = ()
    host_network: Annotated[
        bool, Meta(description="Whether the ranks use the network of their node, as some fabrics need.")
    ] = False


def check_pod(document: Document, part: PodPart) -> None:
    """What the types cannot express. Errors: :class:`unidle.errors.BadInput`."""
    paths: set[str] = set()
    for k, volume in enumerate(part.volumes):
        given = _given(volume)
        if len(given) != 1:
            problem = f"has {' and '.join(given)}" if given else "does not say what it is"
            raise document.error(
                ("pod", "volumes", k), problem, remedy=f"give exactly one of {', '.join(_KINDS)}"
            )
        if volume.memory is not None and memory_bytes(volume.memory) == 0:
            raise document.error(
                ("pod", "volumes", k, "memory"), "is no size", value=volume.memory, remedy="for instance 8GiB"
            )
        path = posixpath.normpath(volume.mount)
        if path in paths or path == "/" or path == RESERVED_PATH or path.startswith(f"{RESERVED_PATH}/"):
            problem = "is mounted twice" if path in paths else "is not possible as a mount"
            raise document.error(
                ("pod", "volumes", k, "mount"), problem, value=volume.mount, remedy="name another path"
            )
        paths.add(path)
    for k, source in enumerate(part.env_from):
        if (source.secret is None) == (source.config_map is None):
            raise document.error(
                ("pod", "env_from", k),
                "needs one of secret and config_map",
                remedy="give exactly one of them",
            )


RESERVED_PATH: Final = "/unidle"
"""Where pods have what unidle itself needs."""


def _given(volume: PodVolumePart) -> list[MountKind]:
    return [kind for kind in _KINDS if getattr(volume, kind) not in (None, False)]


def pod_wish(part: PodPart) -> PodWish:
    """What a checked part requests."""
    return PodWish(
        image=part.image or "",
        image_pull_policy=part.image_pull_policy,
        image_pull_secrets=part.image_pull_secrets,
        volumes=tuple(_mount(volume) for volume in part.volumes),
        env_from=tuple(_env_source(source) for source in part.env_from),
        service_account=part.service_account or "",
        tolerations=tuple(
            PodToleration(one.key or "", one.value or "", one.effect, one.seconds) for one in part.tolerations
        ),
        node_selector=dict(part.node_selector),
        resources=dict(part.resources),
        labels=dict(part.labels),
        annotations=dict(part.annotations),
        priority_class=part.priority_class or "",
        run_as_user=part.run_as_user,
        fs_group=part.fs_group,
        capabilities=part.capabilities,
        host_network=part.host_network,
        python=part.python,
    )


def _mount(volume: PodVolumePart) -> PodMount:
    [kind] = _given(volume)
    value = getattr(volume, kind)
    return PodMount(
        posixpath.normpath(volume.mount),
        kind,
        value if kind in ("claim", "secret", "config_map", "host_path") else "",
        volume.read_only,
        volume.sub_path or "",
        memory_bytes(volume.memory) if volume.memory is not None else 0,
    )


def _env_source(source: PodEnvPart) -> PodEnvSource:
    if source.secret is not None:
        return PodEnvSource("secret", source.secret, source.prefix)
    return PodEnvSource("config_map", source.config_map or "", source.prefix)
