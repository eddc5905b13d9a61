"""Words around a number that tell a count of training steps from any other number. All lower case."""

from __future__ import annotations


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


ITERATION = _set(
    "step steps iter iters iteration iterations it batch batches minibatch update updates timestep timesteps round rounds"
    " episode episodes generation gen rollout iterate globalstep trainstep niter nstep stp"
    " schritt schritte durchlauf paso pasos passo passi pas itération itérations iteración iteraciones iteração"
    " iterazione étape шаг итерация"
)
ITERATION_ENDS = ("步", "步数", "步數", "迭代", "批次", "ステップ", "イテレーション", "バッチ", "스텝")
EPOCH = _set("epoch epochs ep epoche epochen époque época épocas epoca epoche эпоха")
EPOCH_ENDS = ("轮", "轮次", "輪", "周期", "エポック", "에폭")

# Parts of a word that make a count of something else of it: eval_step, batch_size, ms_per_step, steps_per_epoch.
OTHERWISE = _set(
    "eval evaluation val valid validation dev test testing infer inference predict sanity warmup micro save saved log max"
    " size per time ms sec every interval best ckpt checkpoint accumulation accum resume restored skipped start seed total")  # fmt: skip

# What only training (or what is like it: solvers, boosting, search) prints next to its count.
METRICS = _set(
    "loss losses acc accuracy lr grad gnorm norm ppl perplexity reward rewards return bleu auc rmse mse mae logloss"
    " nll bpc bpd entropy objective obj energy residual fitness elbo kl mfu tflops cost error err psnr fid dice iou"
    " precision recall wps tps throughput score learn likelihood logprob regret val"
)

# Those that a word alone stands for: a bare number next to one of them may count steps.
STRONG_METRICS = _set(
    "loss losses acc accuracy lr grad gnorm norm ppl perplexity reward rewards return bleu auc rmse mse mae logloss nll"
    " bpc bpd entropy objective obj energy residual fitness elbo kl cost err psnr fid dice iou regret"
    " verlust fehler genauigkeit perte précision pérdida precisión perdita perda erro потери ошибка"
    " 损失 损失值 损失函数 损失为 学习率 准确率 損失 損失値 精度 손실"
)

# What stands before a number that says nothing of training, with the number's own word or further ahead in the line.
BEFORE = (
    "eval", "valid", "test", "infer", "predict", "sanity", "download", "upload", "fetch", "load", "tokeniz", "extract",
    "resolv", "compil", "build", "install", "linking", "generating", "sampling", "sav", "checkpoint", "ckpt", "writ",
    "reading", "cach", "prepar", "preproc", "processing", "warming", "profil", "calib", "quanti", "retr", "attempt",
    "collect", "import", "convert", "index", "packing", "mapping", "filter", "kill", "pull", "push", "unpack",
    "verif", "heartbeat", "ping", "poll", "wait", "patience", "best", "resum", "restor", "skipp", "scan", "clon",
    "receiv", "wandb", "decod", "denois", "hash", "pars", "scor", "srun", "copy", "warn", "traceback", "exception", "remaining", "eta", "layer",
)  # fmt: skip
BEFORE_WHOLE = _set("val dev map get post line port class bench benchmark validierung téléchargement")
BEFORE_WITHIN = (
    "验证",
    "驗證",
    "测试",
    "測試",
    "评估",
    "下载",
    "加载",
    "保存",
    "推理",
    "検証",
    "評価",
    "テスト",
    "ダウンロード",
)
HELD_OUT = _set("eval evaluation val valid validation test testing infer inference predict sanity")

# Names of numbers that are none of steps, whatever else the line holds.
NAMES = _set(
    "elapsed remaining time sec secs second seconds min mins minutes hour hours day days mem memory gb mb kb bytes size"
    " rank gpu cuda device worker workers thread threads proc process processes host node id uid uuid shard shards file"
    " files chunk chunks row rows page pages record records param params parameter parameters layers block blocks head"
    " heads dim hidden width height version python exit code status http errors warning warnings correct class classes"
    " vocab token tokens word words fps tps wps temperature power util level requests request req connection client"
    " message messages msg event events patience waiting counter scale total used free available offset address pos"
    " position length len seed capacity queue pending items item images image examples example sentences documents"
    " prompt prompts sample case cases question running swapped reqs fold trial run runs seq object objects job jobs task tasks user users uptime part parts reply rss vms peak heap swap repeat sequence sequences wave cpu cores bin bit bits year month instances boxes") | METRICS  # fmt: skip

# Words of lines that count on without being a training's, where nothing in the line speaks for training.
ANYWHERE = (
    "http", "request", "client", "server", "heartbeat", "ping", "health", "alive", "still", "wait", "retry", "connect",
    "listen", "port", "pid", "worker", "thread", "start", "stop", "spawn", "eta", "remain", "elapsed", "upload", "copi",
    "pass", "fail", "layer", "block", "param", "shape", "mem", "gpu", "error", "traceback", "file", "line", "found",
    "built", "object", "target", "package", "dependen", "message", "event", "queue", "job", "task", "node", "host",
    "user", "kernel", "uptime", "second", "minute", "hour", "sleep", "creat", "delet", "add", "remov", "insert", "record",
    "row", "document", "page", "image", "sentence", "question", "answer", "prompt", "item", "chunk", "version", "module",
    "clean", "merg", "sort", "split", "send", "sent", "progress", "complet", "percent", "transfer",
    "nvcc", "gcc", "clang", "usr", "stage", "tid", "probe", "icmp", "ttl", "bytes", "reqs", "alloc", "reserv", "cpu", "load", "packet", "commit", "sync", "backup", "migrat", "schedul", "monitor", "watch", "tick", "counter", "init", "setup", "config",
    "reply", "bench", "keep", "dag", "trip", "took", "ok", "test", "case", "usb", "new", "assistant", "disk", "read", "select", "video", "frame",
)  # fmt: skip

NOT_ALONE = ANYWHERE + BEFORE

# With a word of steps in a line that has no metric: programs that count steps, rounds, batches or epochs of their own.
OTHER_TRADES = (
    "install", "insert", "commit", "transfer", "notif", "schedul", "rebalanc", "elect", "leader", "zone", "serial", "object", "record", "http", "request",
    "client", "server", "download", "upload", "compil", "build", "migrat", "deploy", "component", "kube", "container",
    "docker", "playbook", "query", "queries", "offset", "partition", "consumer", "broker", "peer", "quorum", "ledger",
    "transact", "validator", "finaliz", "justif", "attest", "poll", "ping", "retr", "attempt", "socket", "connect",
    "packet", "email", "login", "auth", "copied", "copying", "backup", "snapshot", "archiv", "pass", "fail", "assert",
    "fuzz", "mutat", "invoice", "payment", "order", "customer", "message", "publish", "subscrib", "replica", "delet",
    "unpack", "extract", "configur", "provision", "terraform", "cluster", "changed", "written", "wrote", "fetch", "receiv", "sent", "send", "topic", "bucket", "workflow", "verif", "clean", "resolv",
)  # fmt: skip
OTHER_TRADES_WHOLE = _set(
    "already image pipeline read from row rows table sql file files group task zk raft paxos vote votes slot slots term block blocks dns gc run gossip"
    " member members key keys cert job jobs mail game player players card poker match stage click open press"
)

# A line with a bare number, or a pair, and no metric: so many words may it have, these not counted.
FEW = 2
FEW_NAMED = 6
OF_A_LOG = _set(
    "info debug warning warn root main train training trainer log logger logging utc am pm z t i w rank done finished"
    " complete completed of in at s sec secs second seconds minutes ms time elapsed now iter it step"
)

# What may stand before the step of a line that is believed alone.
PREFIX = _set("info root main train training trainer logger logging log utc t z i rank default global num")

# Digits behind these name a process: its lines are of a kind of their own.
PROCESS = (
    "rank",
    "gpu",
    "cuda",
    "worker",
    "process",
    "proc",
    "node",
    "device",
    "replica",
    "thread",
    "actor",
    "pid",
)
