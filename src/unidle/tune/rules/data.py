"""UDL1xx: how samples are read, decoded, batched and handed to the step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import (
    argument,
    assigned_in,
    calls_in,
    function_given,
    has_keyword,
    is_true,
    keyword,
    literal,
    names_in,
    source_of,
)

LOADER = "torch.utils.data.DataLoader"
READS = frozenset({
    "PIL.Image.open", "cv2.imread", "np.load", "np.loadtxt", "np.fromfile", "torch.load", "torchaudio.load", "librosa.load",
    "soundfile.read", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread", "skimage.io.imread", "pandas.read_csv",
    "pandas.read_parquet", "pandas.read_pickle", "pandas.read_json", "torchvision.io.read_image", "torchvision.io.decode_image",
    "torchvision.datasets.folder.default_loader", "h5py.File", "scipy.io.loadmat", "nibabel.load", "pydicom.dcmread",
})  # fmt: skip
WHOLE = frozenset({
    "pandas.read_csv", "pandas.read_parquet", "pandas.read_pickle", "pandas.read_json", "np.load", "np.loadtxt", "torch.load",
    "json.load", "pickle.load", "h5py.File", "scipy.io.loadmat", "yaml.safe_load",
})  # fmt: skip
DECODED = ("torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder", "torchvision.datasets.ImageNet", "torchvision.datasets.CocoDetection", "torchvision.datasets.VOCDetection")  # fmt: skip


def _trained_on(facts: SourceFacts, call: ast.Call) -> bool:
    """Whether a loader feeds training: it shuffles, or its name or its data are of training."""
    if is_true(call, "shuffle"):
        return True
    statement = facts.statement(call)
    named = names_in(*statement.targets) if isinstance(statement, ast.Assign) else set()
    data = argument(call, "dataset", 0)
    return any("train" in name.lower() for name in named | (names_in(data) if data is not None else set()))


def _reads_files(facts: SourceFacts, data: ast.expr) -> bool:
    """Whether each sample of a dataset is read from a file, as far as this file shows it."""
    value = source_of(facts, data)
    if isinstance(value, ast.Call) and facts.name_of(value.func).startswith("torchvision.datasets."):
        return facts.name_of(value.func) in DECODED
    owner = facts.class_of(data)
    method = owner.methods.get("__getitem__") if owner is not None else None
    return method is not None and _reads(facts, method, 0)


def _reads(facts: SourceFacts, function: FunctionFacts, deep: int) -> bool:
    for call in function.calls:
        if facts.name_of(call.func) in READS or (isinstance(call.func, ast.Name) and call.func.id == "open"):
            return True
        inner = facts.called(call)
        if inner is not None and deep < 4 and _reads(facts, inner, deep + 1):
            return True
    return False


@rule(
    "UDL101",
    "loader-without-workers",
    "the loader reads files in the training process; set num_workers",
)
def loader_without_workers(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(LOADER):
        data = argument(call, "dataset", 0)
        if data is None or not _trained_on(facts, call) or not _reads_files(facts, data):
            continue
        if literal(argument(call, "num_workers", 5)) == 0 or not (
            has_keyword(call, "num_workers") or len(call.args) > 5
        ):
            yield call


@rule(
    "UDL102",
    "whole-file-per-sample",
    "the same file is read again for each sample; read it once in __init__",
    severity="error",
)
def whole_file_per_sample(facts: SourceFacts) -> Iterator[ast.AST]:
    for owner in facts.walk.classes.values():
        method = owner.methods.get("__getitem__")
        if method is None or not method.sample:
            continue
        changing = _depends_on(method, [name for name in method.params if name != "self"][:1])
        for call in method.calls:
            if facts.name_of(call.func) not in WHOLE or not call.args or has_keyword(call, "mmap_mode"):
                continue
            if not names_in(call) & changing and not _is_lazy(facts, call):
                yield call


def _depends_on(function: FunctionFacts, start: list[str]) -> set[str]:
    """Names whose values change with those at the start."""
    found = set(start)
    for _ in range(4):
        for name, bindings in function.bindings.items():
            if any(names_in(binding.value) & found for binding in bindings):
                found.add(name)
    return found


def _is_lazy(facts: SourceFacts, call: ast.Call) -> bool:
    """``if self.file is None: self.file = h5py.File(...)`` reads once in each worker."""
    return any(mark.kind == "if" for mark in facts.path_of(call))


@rule(
    "UDL103",
    "tensor-from-arrays",
    "a tensor is made from a list of arrays, element by element; stack the arrays first",
)
def tensor_from_arrays(facts: SourceFacts) -> Iterator[ast.AST]:
    makers = (
        "torch.tensor",
        "torch.as_tensor",
        "torch.FloatTensor",
        "torch.LongTensor",
        "torch.Tensor",
        "torch.DoubleTensor",
    )
    for call in facts.calls(*makers):
        if call.args and facts.role(call.args[0]) == "arrays":
            yield call


@rule(
    "UDL104",
    "array-copied-per-sample",
    "torch.tensor copies the array of each sample; torch.from_numpy shares it",
    severity="note",
)
def array_copied(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.tensor", "torch.FloatTensor", "torch.Tensor"):
        if (
            facts.in_sample(call)
            and len(call.args) == 1
            and facts.role(call.args[0]) == "array"
            and not isinstance(call.args[0], ast.Subscript)
        ):
            yield call


def _batch_moves(facts: SourceFacts) -> Iterator[ast.Call]:
    for call in facts.method_calls("to", "cuda"):
        if (
            isinstance(call.func, ast.Attribute)
            and facts.role(call.func.value) == "batch"
            and facts.training(call)
        ):
            yield call


@rule(
    "UDL105",
    "copy-without-pinned-memory",
    "non_blocking copies wait unless the loader has pin_memory=True",
)
def copy_without_pinned(facts: SourceFacts) -> Iterator[ast.AST]:
    loaders = [call for call in facts.calls(LOADER) if _trained_on(facts, call)]
    if (
        not loaders
        or any(has_keyword(call, "pin_memory") for call in loaders)
        or "pin_memory" in facts.methods
    ):
        return
    yield from (call for call in _batch_moves(facts) if is_true(call, "non_blocking"))


@rule(
    "UDL106",
    "blocking-copy-of-pinned-batch",
    "the batch is in pinned memory, but the copy waits; pass non_blocking=True",
)
def blocking_copy(facts: SourceFacts) -> Iterator[ast.AST]:
    loaders = [call for call in facts.calls(LOADER) if _trained_on(facts, call)]
    if not loaders or not all(is_true(call, "pin_memory") for call in loaders):
        return
    for call in _batch_moves(facts):
        if not has_keyword(call, "non_blocking") and len(call.args) < 2 and facts.role(call) != "host":
            yield call


@rule(
    "UDL107",
    "workers-restarted",
    "workers are started again in each epoch; set persistent_workers=True",
    severity="note",
)
def workers_restarted(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(LOADER):
        workers = literal(argument(call, "num_workers", 5))
        if not isinstance(workers, int) or workers < 1 or has_keyword(call, "persistent_workers"):
            continue
        if _trained_on(facts, call) and any(
            len(facts.loops(loop)) > 0 or _called_in_loop(facts, loop) for loop in facts.hot_code.loops
        ):
            yield call


def _called_in_loop(facts: SourceFacts, loop: ast.stmt) -> bool:
    return any(facts.loops(call) for call in facts.callers(facts.walk.function[loop]))


@rule(
    "UDL108",
    "loader-made-in-loop",
    "the same loader is made again in each round of the loop; make it once before",
    severity="error",
)
def loader_in_loop(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(LOADER):
        loops = facts.loops(call)
        if not loops or any(mark.kind == "if" for mark in facts.path_of(call)):
            continue
        changing = set().union(*(assigned_in(loop) for loop in loops))
        trains = any(other in facts.hot_code.loops or _holds(other, facts) for other in loops)
        if trains and not names_in(*call.args, *(k.value for k in call.keywords)) & changing:
            yield call


def _holds(loop: ast.AST, facts: SourceFacts) -> bool:
    return any(one in facts.hot_code.loops for one in ast.walk(loop))


@rule(
    "UDL109",
    "padded-to-longest-possible",
    "each sample is padded to max_length; pad each batch to its longest sample",
)
def padded_to_max(facts: SourceFacts) -> Iterator[ast.AST]:
    if "torch.compile" in facts.named or "torch_xla" in facts.names.modules:
        return  # fixed shapes have their reason
    for call in facts.walk.calls:
        if (
            literal(keyword(call, "padding")) == "max_length"
            and facts.role(_callee(call)) == "tokenizer"
            and (facts.in_sample(call) or _in_mapped(facts, call))
        ):
            yield call


_TOKENISES = ("encode_plus", "batch_encode_plus", "encode", "tokenizer", "__call__", "tokenize")


def _tokenises(call: ast.Call) -> bool:
    return not isinstance(call.func, ast.Attribute) or call.func.attr in _TOKENISES


def _callee(call: ast.Call) -> ast.expr:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in (
        "encode_plus",
        "batch_encode_plus",
        "encode",
        "__call__",
    ):
        return function.value
    return function


def _in_mapped(facts: SourceFacts, call: ast.Call) -> bool:
    """Whether a call is in a function that ``dataset.map`` applies."""
    node = facts.function_of(call).node
    inside = {node, *(up for up in facts.parents(call) if isinstance(up, ast.Lambda))}
    return any(
        one.args and function_given(facts, one.args[0]) in inside - {None}
        for one in facts.method_calls("map")
    )


@rule(
    "UDL110",
    "iterator-made-each-step",
    "next(iter(loader)) starts the loader again in each step; keep one iterator",
    severity="error",
)
def iterator_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        if isinstance(call.func, ast.Name) and call.func.id == "next" and call.args and facts.training(call):
            inner = call.args[0]
            if (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Name)
                and inner.func.id == "iter"
                and inner.args
            ) and facts.role(inner.args[0]) == "loader":
                yield call


@rule(
    "UDL111",
    "tokenised-in-step",
    "text is tokenised in the training step; do it in the dataset or its workers",
)
def tokenised_in_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        if (
            facts.role(_callee(call)) == "tokenizer"
            and _tokenises(call)
            and facts.training(call)
            and not facts.in_sample(call)
        ):
            yield call


@rule(
    "UDL112", "file-read-in-step", "files are read in the training step; read them in a dataset with workers"
)
def file_read_in_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for name in READS - {"torch.load", "h5py.File"}:
        for call in facts.calls(name):
            if facts.training(call) and not facts.in_sample(call):
                yield call


@rule(
    "UDL113",
    "map-not-batched",
    "the tokenizer is applied to one text at a time; use map(..., batched=True)",
)
def map_not_batched(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("map"):
        if (
            not call.args
            or has_keyword(call, "batched", "num_proc", "num_parallel_calls")
            or len(call.args) > 1
        ):
            continue
        function = function_given(facts, call.args[0])
        if function is not None and any(
            facts.role(_callee(one)) == "tokenizer" for one in calls_in(function)
        ):
            yield call
