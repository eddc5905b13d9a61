"""Words around a number that tell a count of training steps from any other number. All lower case."""

from __future__ import annotations


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


ITERATION = _set(
    "step steps iter iters iteration iterations it batch batches minibatch update updates timestep timesteps round rounds"
    " episode episodes generation rollout globalstep trainstep niter nstep stp"
)
EPOCH = _set("epoch epochs ep")

# Parts of a word that make a count of something else of it: eval_step, batch_size, ms_per_step, steps_per_epoch.
OTHERWISE = _set(
    "eval evaluation val valid validation dev test testing infer inference predict sanity warmup micro save saved log max"
    " size per time ms sec every interval best ckpt checkpoint accumulation accum resume restored skipped start seed total")  # fmt: skip

# What only training (or what is like it: solvers, boosting, search) prints next to its count.
METRICS = _set(
    "loss losses acc accuracy lr grad gnorm norm ppl perplexity reward rewards return bleu map auc rmse mse mae logloss"
    " nll bpc bpd entropy objective obj energy residual fitness elbo kl mfu tflops cost error err psnr fid dice iou"
    " precision recall wps tps throughput score learn likelihood logprob regret val"
)

# What stands before a number that says nothing of training, with the number's own word or further ahead in the line.
BEFORE = (
    "eval", "valid", "test", "infer", "predict", "sanity", "download", "upload", "fetch", "load", "tokeniz", "extract",
    "resolv", "compil", "build", "install", "linking", "generating", "sampling", "sav", "checkpoint", "ckpt", "writ",
    "reading", "cach", "prepar", "preproc", "processing", "warming", "profil", "calib", "quanti", "retr", "attempt",
    "collect", "import", "convert", "index", "shard", "packing", "mapping", "filter", "kill", "pull", "push", "unpack",
    "verif", "heartbeat", "ping", "poll", "wait", "patience", "best", "resum", "restor", "skipp", "scan", "clon",
    "receiv", "wandb", "srun", "copy", "warn", "traceback", "exception", "remaining", "eta", "layer",
)  # fmt: skip
BEFORE_WHOLE = _set("val dev get post line port pid class bench benchmark")

# Names of numbers that are none of steps, whatever else the line holds.
NAMES = _set(
    "elapsed remaining time sec secs second seconds min mins minutes hour hours day days mem memory gb mb kb bytes size"
    " rank gpu cuda device worker workers thread threads proc process processes host node id uid uuid shard shards file"
    " files chunk chunks row rows page pages record records param params parameter parameters layers block blocks head"
    " heads dim hidden width height version python exit code status http errors warning warnings correct class classes"
    " vocab token tokens word words fps tps wps temperature power util level requests request req connection client"
    " message messages msg event events patience waiting counter scale total used free available offset address pos"
    " position length len seed capacity queue pending items item images image examples example sentences documents"
    " prompt prompts sample case cases question running swapped reqs fold trial run runs seq object objects job jobs task tasks user users uptime cpu cores bin bit bits year month instances boxes") | METRICS  # fmt: skip

# Words of lines that count on without being a training's, where nothing in the line speaks for training.
ANYWHERE = (
    "http", "request", "client", "server", "heartbeat", "ping", "health", "alive", "still", "wait", "retry", "connect",
    "listen", "port", "pid", "worker", "thread", "start", "stop", "spawn", "eta", "remain", "elapsed", "upload", "copi",
    "pass", "fail", "layer", "block", "param", "shape", "mem", "gpu", "error", "traceback", "file", "line", "found",
    "built", "object", "target", "package", "dependen", "message", "event", "queue", "job", "task", "node", "host",
    "user", "kernel", "uptime", "second", "minute", "hour", "sleep", "creat", "delet", "add", "remov", "insert", "record",
    "row", "document", "page", "image", "sentence", "question", "answer", "prompt", "item", "chunk", "version", "module",
    "clean", "merg", "sort", "split", "send", "sent", "progress", "done", "complet", "finish", "percent", "transfer",
    "nvcc", "gcc", "clang", "usr", "stage", "tid", "probe", "icmp", "ttl", "bytes", "reqs", "alloc", "reserv", "cpu", "load", "packet", "commit", "sync", "backup", "migrat", "schedul", "monitor", "watch", "tick", "counter", "init", "setup", "config",
)  # fmt: skip

# Digits behind these name a process: its lines are of a kind of their own.
PROCESS = ("rank", "gpu", "cuda", "worker", "process", "proc", "node", "device", "replica", "thread", "actor")
