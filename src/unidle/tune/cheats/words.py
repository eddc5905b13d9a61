"""Rules of refusal, and the names of functions that they are about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

RULES: Final = {
    "timer": "what measures time is as it was",
    "timed": "what was timed is timed",
    "seed": "seeds and generators are as they were",
    "steps": "numbers of steps, epochs and samples are as they were",
    "data": "data, their paths and their order are as they were",
    "tests": "tests and assertions are as they were",
    "harness": "nothing is replaced in other modules, and no code is made at run time",
    "deferred": "no work moves to another thread or process, to the exit, or to first use",
    "cached": "what depends on data or parameters is computed in each step",
    "observed": "nothing depends on environment, stack or process",
    "work": "each update, evaluation and checkpoint is made, with the same settings",
}


@dataclass(frozen=True, slots=True)
class CheatRefusal:
    """A change breaks ``rule`` at a line of the file: after the change, or before it where something is gone. Line 0: in the run."""

    rule: str
    file: str
    line: int
    message: str

    def text(self) -> str:
        """One line for a person or a model."""
        place = f"{self.file}:{self.line}: " if self.line else ""
        return f"{place}{self.message} ({self.rule}: {RULES[self.rule]})"


def _full(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:{pattern})$", re.VERBOSE)


TIMERS: Final = _full(
    r"time\.\w+ | timeit\.\w+ | datetime\.datetime\.(?:now|utcnow|today) | torch\.(?:cuda\.)?Event | torch\.utils\.benchmark\.\w+"
    r" | resource\.getrusage | os\.times | psutil\..* | torch\.profiler\..* | cProfile\..* | tracemalloc\..*"
)
SEEDS: Final = _full(
    r".*manual_seed(?:_all)? | .*\.(?:seed|set_seed|seed_everything|default_rng|RandomState|Generator|setstate|set_state|set_rng_state)"
    r" | seed_everything | set_seed | torch\.use_deterministic_algorithms | .*fork_rng | torch\.(?:initial_seed|random\..*)"
)
THREADS: Final = _full(
    r"threading\..* | _thread\..* | multiprocessing\..* | concurrent\..* | asyncio\..* | atexit\..* | subprocess\..* | sched\..* | signal\..*"
    r" | torch\.multiprocessing\..* | torch\.jit\.(?:fork|_fork) | torch\.futures\..* | weakref\.(?:finalize|ref|proxy) | joblib\..* | ray\..*"
    r" | os\.(?:fork|forkpty|posix_spawn.*|spawn.*|exec.*|popen|system) | queue\..* | greenlet\..* | gevent\..* | contextlib\.ExitStack"
)
CACHES: Final = _full(
    r"functools\.(?:lru_cache|cache|cached_property|singledispatch) | cachetools\..* | joblib\.Memory | diskcache\..* | weakref\.Weak.*|shelve\..* | pickle\..*"
)
OBSERVERS: Final = _full(
    r"os\.(?:environ|getenv|environb|getpid|getppid|getpgid|getcwd|uname|isatty|stat|listdir|scandir|path\.(?:exists|isfile|isdir|getmtime))(?:\..*)?"
    r" | sys\.(?:_getframe|_current_frames|gettrace|settrace|getprofile|setprofile|monitoring|modules|argv|flags|path|meta_path|_xoptions"
    r"|stdout\.isatty|stdin\.isatty|getrefcount|executable|addaudithook|excepthook|displayhook|path_hooks)(?:\..*)?"
    r" | inspect\..* | traceback\..* | gc\..* | platform\..* | socket\..* | getpass\..* | pwd\..* | pathlib\.Path\.(?:cwd|home)"
    r" | torch\.(?:_C\._.*|autograd\.profiler\..*|overrides\..*|utils\._python_dispatch\..*|is_grad_enabled|is_deterministic.*|get_default_dtype|are_deterministic.*)"
)
HIDDEN: Final = _full(
    r"exec | eval | compile | __import__ | setattr | delattr | globals | vars | builtins\..* | importlib\..* | ctypes\..* | runpy\..* | unittest\.mock\..*"
    r" | types\.(?:CodeType|FunctionType|MethodType|ModuleType) | marshal\..* | codeop\..* | code\..* | torch\.library\..* | breakpoint | sys\.exit | os\._exit | os\.abort | exit | quit"
)
WORK: Final = frozenset({
    "backward", "step", "zero_grad", "clip_grad_norm_", "clip_grad_value_", "all_reduce", "reduce", "all_gather", "broadcast", "barrier",
    "reduce_scatter", "save", "state_dict", "load_state_dict", "train", "eval", "evaluate", "validate", "dropout", "unscale_", "update",
    "manual_backward", "save_checkpoint", "save_pretrained", "flush", "fsync", "wait", "result", "join", "write",
})  # fmt: skip
"""Methods and functions that are called as often as before."""
LESS: Final = frozenset(
    {"detach", "detach_", "requires_grad_", "eval", "no_grad", "inference_mode", "set_grad_enabled"}
)
"""What leaves out gradients, where it is new in training code."""
LESS_DATA: Final = frozenset({"islice", "Subset", "random_split", "takewhile"})
AMOUNTS: Final = re.compile(
    r"(?:^|_)(?:steps?|epochs?|iters?|iterations?|batch(?:es)?|batch_size|bs|bsz|samples?|limit|accum\w*|interval|every|lr|learning_rate|momentum|betas?"
    r"|weight_decay|wd|eps|dropout|hidden\w*|dim|d_model|layers?|heads?|seq_len|block_size|vocab\w*|seed|size|width|height|length|patience|p|tol\w*|k)(?:_|$|s$)",
    re.IGNORECASE,
)
"""Names whose constants decide how much is computed."""
FREE_KEYWORDS: Final = frozenset({
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "non_blocking", "set_to_none", "fused", "foreach", "device", "bucket_cap_mb",
    "gradient_as_bucket_view", "static_graph", "find_unused_parameters", "pin_memory_device", "memory_format", "flush", "end", "sep", "file",
    "maxsize", "is_causal", "attn_mask", "out", "dim", "copy", "keepdim", "retain_graph", "create_graph", "batch_first", "persistent", "map_location", "inplace",
})  # fmt: skip
"""Keywords that change how something is computed, or whose effect verification sees."""
ENVIRONMENT_OK: Final = re.compile(
    r"^(?:OMP|MKL|OPENBLAS|NUMEXPR|KMP|NCCL|GLOO|TORCH_NCCL|PYTORCH_(?:CUDA_)?ALLOC|TOKENIZERS|CUDA_DEVICE_MAX|MALLOC|RAYON)_?\w*$"
)
"""Variables that set threads, allocators and transports."""
