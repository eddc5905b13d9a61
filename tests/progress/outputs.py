"""Outputs of training programs, and of programs that are none, in the shapes that they really have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

_OUTPUTS: dict[str, tuple[int, int, int, Callable[[], str]]] = {}
"""By name: how many steps are to be read, the first, the last, and what prints them."""
_NONE: dict[str, Callable[[], str]] = {}


def _trains(marks: int, first: int, last: int) -> Callable[[Callable[[], Iterator[str]]], None]:
    def keep(lines: Callable[[], Iterator[str]]) -> None:
        _OUTPUTS[lines.__name__] = (marks, first, last, lambda: "".join(lines()))

    return keep


def _none(lines: Callable[[], Iterator[str]]) -> None:
    _NONE[lines.__name__] = lambda: "".join(lines())


def trainings() -> dict[str, tuple[int, int, int, str]]:
    return {name: (marks, first, last, make()) for name, (marks, first, last, make) in _OUTPUTS.items()}


def others() -> dict[str, str]:
    return {name: make() for name, make in _NONE.items()}


def _loss(step: int) -> float:
    return 2.5 / (1 + step / 50) + random.Random(step).random() / 10


@_trains(20, 0, 2 * 6000 - 600)
def pytorch_mnist() -> Iterator[str]:
    for epoch in (1, 2):
        for seen in range(0, 6000, 600):
            yield f"Train Epoch: {epoch} [{seen}/6000 ({100 * seen / 6000:.0f}%)]\tLoss: {_loss(seen):.6f}\n"
        yield f"\nTest set: Average loss: 0.{epoch}542, Accuracy: {5200 + epoch}/6000 (87%)\n\n"


@_trains(30, 1, 30)
def epoch_and_step() -> Iterator[str]:
    for epoch in (1, 2, 3):
        for step in range(1, 11):
            yield f"epoch {epoch} step {step}: loss {_loss(step):.3f}\n"


@_trains(25, 0, 24)
def step_and_loss() -> Iterator[str]:
    yield "using device: cpu\n"
    for step in range(25):
        yield f"step {step} loss {_loss(step):.4f}\n"


@_trains(30, 1, 30)
def step_of_many() -> Iterator[str]:
    for step in range(1, 31):
        yield f"Step {step}/30, loss={_loss(step):.4f}, lr=1e-{step % 3 + 3:02}\n"


@_trains(12, 50, 600)
def epoch_pipe_iter() -> Iterator[str]:
    for epoch in (1, 2, 3):
        for step in (50, 100, 150, 200):
            yield f"Epoch {epoch} | Iter {step:4} | loss {_loss(step):8.4f} | time {step * 0.3:.1f}s\n"


@_trains(20, 10, 200)
def logging_with_timestamps_and_ranks() -> Iterator[str]:
    for step in range(10, 210, 10):
        for rank in range(2):
            at = f"2026-03-01 12:{step // 60:02}:{step % 60:02},{step + rank:03}"
            yield f"{at} [rank{rank}] INFO train.py:{80 + rank} - \x1b[32mglobal_step={step}\x1b[0m loss={_loss(step):.3f}\n"


@_trains(40, 0, 39)
def json_lines() -> Iterator[str]:
    for step in range(40):
        yield f'{{"time": {1772000000.5 + step}, "step": {step}, "loss": {_loss(step):.5f}}}\n'


@_trains(6, 10, 60)
def json_lines_of_epochs() -> Iterator[str]:
    for epoch in (1, 2):
        for step in (10, 20, 30):
            yield f'{{"epoch":{epoch},"iter":{step},"loss":{_loss(step):.5f}}}\n'


@_trains(24, 1, 24)
def keras() -> Iterator[str]:
    for epoch in (1, 2):
        yield f"Epoch {epoch}/2\n"
        for n in range(1, 13):
            bar = "=" * (2 * n - 1) + (">" if n < 12 else "=") + "." * (24 - 2 * n)
            end = " - val_loss: 0.5 - val_accuracy: 0.8\n" if n == 12 else ""
            yield (
                "\x08" * 60 * (n > 1)
                + f"\r{n:2}/12 [{bar}] - ETA: 0s - loss: {_loss(n):.4f} - accuracy: 0.8{end}"
            )
    for n in (1, 13, 40):
        yield f"\r{n}/40 [==========>..] - ETA: 0s - loss: 0.4001 - accuracy: 0.8"
    yield "\n"


@_trains(8, 25, 200)
def keras_3() -> Iterator[str]:
    for epoch in (1, 2):
        yield f"Epoch {epoch}/2\n"
        for n in (25, 50, 75, 100):
            yield (
                f"\x1b[1m{n:3}/100\x1b[0m \x1b[32m{'━' * (n // 5)}\x1b[0m\x1b[37m{'━' * (20 - n // 5)}\x1b[0m "
                f"\x1b[1m3s\x1b[0m 33ms/step - accuracy: 0.{n:03} - loss: {_loss(n):.4f}\n"
            )


@_trains(3, 100, 300)
def keras_one_line_for_an_epoch() -> Iterator[str]:
    for epoch in (1, 2, 3):
        yield f"Epoch {epoch}/3\n100/100 - 2s - 21ms/step - accuracy: 0.8{epoch} - loss: {_loss(epoch):.4f}\n"


@_trains(6, 100, 600)
def fairseq_json() -> Iterator[str]:
    for k in range(1, 7):
        yield (
            f'2026-03-01 12:00:{k:02} | INFO | train_inner | {{"epoch": 1, "update": {k / 10}, "loss": "{_loss(k):.3f}", '
            f'"ppl": "1024.5", "wps": "2013.1", "num_updates": "{k * 100}", "lr": "1e-05", "wall": "{k * 9}"}}\n'
        )
    yield '2026-03-01 12:00:20 | INFO | valid | {"epoch": 1, "valid_loss": "8.1", "valid_num_updates": "600"}\n'


@_trains(5, 50, 250)
def fairseq_simple() -> Iterator[str]:
    for k in range(1, 6):
        yield (
            f"2026-03-01 12:00:{k:02} | INFO | train_inner | epoch 001:  {k * 50:4} / 1000 loss={_loss(k):.3f}, ppl=90.1, "
            f"wps=101.5, ups=2.1, num_updates={k * 50}, lr=0.0001, wall={k * 5}\n"
        )


@_trains(8, 0, 1251 + 150)
def timm() -> Iterator[str]:
    for epoch in (0, 1):
        for n in (0, 50, 100, 150):
            yield (
                f"Train: {epoch} [{n:4}/1251 ({n / 12.5:3.0f}%)]  Loss: {_loss(n):.3f} ({_loss(n):.3f})  Time: 0.512s, "
                f"250.01/s  (0.512s,  250.01/s)  LR: 1.000e-05  Data: 0.010 (0.021)\n"
            )
        for n in (0, 50, 97):
            yield f"Test: [{n:4}/97]  Time: 0.300 (0.300)  Loss:   1.31 (  1.31)  Acc@1:  71.1 ( 71.1)\n"


ULTRALYTICS_HEAD = "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
ULTRALYTICS_EVAL = (
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): "
)


@_trains(15, 1, 15)
def ultralytics() -> Iterator[str]:
    yield "train: Scanning /data/labels/train... 4 images, 0 backgrounds, 0 corrupt: 100%|##########| 4/4 [00:00<00:00, 812.01it/s]\n"
    for epoch in (1, 2, 3):
        yield ULTRALYTICS_HEAD
        for n in range(6):
            yield f"\r      {epoch}/3      2.34G      1.{n}23      2.3{n}5      1.23         45        640: {n * 20:3}%|{'█' * n}{' ' * (5 - n)}| {n}/5 [00:0{n}<00:01,  3.20it/s]"
        yield "\n"
        for n in (0, 2, 4):
            yield f"\r{ULTRALYTICS_EVAL}{n * 25:3}%|{'█' * n}| {n}/4 [00:00<00:00,  3.5it/s]"
        yield "\n                   all          4         17      0.557       0.55\n"


@_trains(8, 1, 8)
def ultralytics_of_today() -> Iterator[str]:
    for epoch in (1, 2):
        yield ULTRALYTICS_HEAD
        for n in range(1, 5):
            yield f"\r\x1b[K        {epoch}/2         0G      1.{n}23      2.3{n}5      1.23         45        640: {n * 25}% {'━' * n}{'─' * (4 - n)} {n}/4 3.2it/s 0.{n}s<1.0s"
        yield "\n"
        for n in range(1, 4):
            yield f"\r\x1b[K{ULTRALYTICS_EVAL}{n * 33}% {'━' * n} {n}/3 3.5it/s 0.1s"
        yield "\n"


@_trains(6, 50, 350)
def mmcv() -> Iterator[str]:
    for epoch in (1, 2):
        for n in (50, 100, 150):
            yield (
                f"2026-03-01 12:00:00,123 - mmdet - INFO - Epoch [{epoch}][{n}/200]\tlr: 2.500e-03, eta: 0:10:0{epoch}, "
                f"time: 0.51, data_time: 0.05, memory: 3400, loss: {_loss(n):.4f}\n"
            )
        yield f"2026-03-01 12:00:00,123 - mmdet - INFO - Epoch(val) [{epoch}][100]\tbbox_mAP: 0.1\n"


@_trains(6, 50, 350)
def mmengine() -> Iterator[str]:
    for epoch in (1, 2):
        for n in (50, 100, 150):
            yield f"2026/03/01 12:00:00 - mmengine - INFO - Epoch(train)  [{epoch}][{n:3}/200]  lr: 1e-3  eta: 0:10:00  time: 0.5  loss: {_loss(n):.4f}\n"
        for n in (50, 100):
            yield f"2026/03/01 12:00:00 - mmengine - INFO - Epoch(val)  [{epoch}][{n:3}/100]    eta: 0:00:10  time: 0.2\n"


@_trains(5, 19, 99)
def detectron2() -> Iterator[str]:
    for n in range(19, 100, 20):
        yield f"[03/01 12:00:{n % 60:02} d2.utils.events]:  eta: 0:10:00  iter: {n}  total_loss: {_loss(n):.3f}  time: 0.5  lr: 1.6e-05  max_mem: 12{n}M\n"


@_trains(6, 200, 2983 + 600)
def word_language_model() -> Iterator[str]:
    for epoch in (1, 2):
        for n in (200, 400, 600):
            yield f"| epoch {epoch:3} | {n:5}/ 2983 batches | lr 20.00 | ms/batch 12.34 | loss {_loss(n):5.2f} | ppl  2082.36\n"
        yield (
            "-" * 89
            + f"\n| end of epoch {epoch:3} | time: 33.44s | valid loss  5.60 | valid ppl   270.87\n"
            + "-" * 89
            + "\n"
        )


@_trains(6, 0, 20 + 500)
def torchvision_references() -> Iterator[str]:
    for epoch in (0, 1):
        for n in (0, 10, 20):
            yield f"Epoch: [{epoch}]  [{n:3}/500]  eta: 0:01:10  lr: 0.01  img/s: 101.2  loss: {_loss(n):.4f} (2.3)  acc1: 10.0 (9.1)  time: 0.31  data: 0.02  max mem: {1000 + n}\n"
        for n in (0, 10, 20, 30):
            yield f"Test:   [{n:3}/50]  eta: 0:00:10  loss: 2.1 (2.1)  acc1: 20.0 (20.0)  time: 0.1  data: 0.01  max mem: 1201\n"


@_trains(4, 0, 300)
def mingpt() -> Iterator[str]:
    for n in range(0, 400, 100):
        yield f"iter_dt 10.{n}ms; iter {n}: train loss {_loss(n):.5f}\n"


@_trains(6, 100, 600)
def bracketed_batches_under_headings() -> Iterator[str]:
    for epoch in (1, 2):
        yield f"Epoch {epoch}\n-------------------------------\n"
        for n in (100, 200, 300):
            yield f"loss: {_loss(n):>7f}  [{n:>5d}/  300]\n"
        yield f"Test Error: \n Accuracy: {60 + epoch}.1%, Avg loss: 0.8 \n\n"


@_trains(10, 100, 1000)
def pairs_in_brackets() -> Iterator[str]:
    for n in range(100, 1100, 100):
        yield f"[{n}/1000] loss {_loss(n):.3f} acc {n / 2000:.3f}\n"


@_trains(5, 0, 4)
def epochs_only() -> Iterator[str]:
    for epoch in range(5):
        yield f"Epoch {epoch}/4\n----------\ntrain Loss: {_loss(epoch):.4f} Acc: 0.7{epoch}\nval Loss: 0.3{epoch} Acc: 0.8\n\n"


@_trains(7, 0, 6)
def fast_ai_table() -> Iterator[str]:
    yield "epoch     train_loss  valid_loss  accuracy  time    \n"
    for epoch in range(7):
        yield f"{epoch:<9} {_loss(epoch):.6f}    0.23{epoch}1    0.91{epoch}     00:1{epoch}    \n"


@_trains(12, 1, 12)
def csv_with_a_head() -> Iterator[str]:
    yield "step,loss,lr\n"
    for step in range(1, 13):
        yield f"{step},{_loss(step):.4f},0.001\n"


@_trains(8, 10, 80)
def flax_with_glog_lines() -> Iterator[str]:
    for n in range(10, 90, 10):
        yield f"I0301 12:00:{n % 60:02}.123456 140735 logging_writer.py:48] [{n}] loss={_loss(n):.4f}, accuracy=0.{n}\n"


@_trains(6, 0, 5)
def maxtext() -> Iterator[str]:
    for n in range(6):
        yield f"completed step: {n}, seconds: 1.2{n}, TFLOP/s/device: 101.{n}, Tokens/s/device: 7001.5, total_weights: 65536, loss: {_loss(n):.3f}\n"


@_trains(8, 2048, 8 * 2048)
def reinforcement_tables() -> Iterator[str]:
    for k in range(1, 9):
        yield (
            f"-----------------------------------\n| rollout/            |           |\n|    ep_rew_mean      | {20 + k}.1      |\n"
            f"| time/               |           |\n|    fps              | {900 + 7 * k % 5}       |\n|    time_elapsed     | {k * 2}         |\n"
            f"|    total_timesteps  | {2048 * k:<9} |\n-----------------------------------\n"
        )


@_trains(9, 0, 80)
def boosting() -> Iterator[str]:
    for n in range(0, 90, 10):
        yield f"[{n}]\tvalidation_0-rmse:0.{90 - n}123\tvalidation_1-rmse:0.{95 - n}456\n"


@_trains(20, 1, 20)
def generations_of_a_search() -> Iterator[str]:
    for n in range(1, 21):
        yield f"generation {n}: best fitness {_loss(n):.4f}, mean {_loss(n + 1):.4f}\n"


@_trains(12, 100, 1200)
def numbers_of_a_solver() -> Iterator[str]:
    for n in range(100, 1300, 100):
        yield f"{n:8} {_loss(n):.6e} {_loss(n + 1):.6e} {300 + _loss(n):.3f}\n"


@_trains(15, 20, 300)
def windows_line_ends_and_noise() -> Iterator[str]:
    for n in range(20, 320, 20):
        yield f"[INFO] iteration {n}  loss: {_loss(n):.4f}\r\n"
        if n % 60 == 0:
            yield f"[INFO] saving checkpoint ckpt_{n}.pt ({n * 1000} bytes)\r\n"
            yield f"UserWarning: lr_scheduler.step() called {n} times\r\n"


@_trains(30, 1, 30)
def two_processes_that_print_the_same() -> Iterator[str]:
    for step in range(1, 31):
        yield f"step {step} loss {_loss(step):.4f}\n"
        if step > 2:
            yield f"step {step - 1} loss {_loss(step):.4f}\nstep {step} loss {_loss(step):.4f}\n"


@_trains(16, 1, 16)
def llm_c() -> Iterator[str]:
    for n in range(1, 17):
        yield f"step {n:4}/1000 | loss {_loss(n):7.6f} (+nanz)| norm 0.{n:04} | lr 3.00e-04 | {80 + n}.22 ms | 45.0% bf16 MFU | {n * 137 % 911} tok/s\n"


@_trains(10, 5, 50)
def custom_bar_with_carriage_returns() -> Iterator[str]:
    for n in range(5, 55, 5):
        yield f"\r[{'#' * n}{' ' * (50 - n)}] batch {n}/50 loss {_loss(n):.3f}"
    yield "\n"


@_trains(40, 1, 40)
def megatron_like_of_ones_own() -> Iterator[str]:
    for n in range(1, 41):
        yield f"rank 3 | 2026-03-01T12:00:00.{n:06}Z | it={n} | lm_loss={_loss(n):.4f} | tokens={n * 4096} | grad_norm={_loss(n):.2f}\n"


@_trains(15, 0, 140)
def steps_under_headings_with_a_validation() -> Iterator[str]:
    for epoch in range(3):
        yield f"Epoch {epoch}\n"
        yield from (f"step {n}: loss={_loss(n):.3f}\n" for n in range(0, 50, 10))
        yield from (f"valid {n}: loss=0.5\n" for n in range(3))


@_trains(10, 10, 100)
def a_shorter_loop_between_that_prints_alike() -> Iterator[str]:
    for _ in range(2):
        yield from (f"[{n}/50] loss {_loss(n):.3f}\n" for n in range(10, 60, 10))
        yield "Evaluating...\n"
        yield from (f"[{n}/20] loss {_loss(n):.3f}\n" for n in range(5, 25, 5))


@_trains(30, 0, 29)
def rewards_below_zero() -> Iterator[str]:
    for n in range(30):
        yield f"reward {random.Random(n).uniform(-1, 1):.2f} after {n} episodes\n"


@_trains(25, 1, 25)
def folds_of_a_cross_validation() -> Iterator[str]:
    for fold in range(5):
        yield from (f"Fold {fold} Epoch {n} loss {_loss(n):.3f}\n" for n in range(1, 6))


@_trains(15, 0, 1400)
def molecular_dynamics() -> Iterator[str]:
    yield "Step Temp E_pair E_mol TotEng Press\n"
    for n in range(0, 1500, 100):
        yield f"{n:10}   3.0{n}   -{6.7 + n / 1e4:.4f}   0  -2.27  -3.70\n"


@_trains(20, 1, 20)
def boosting_table() -> Iterator[str]:
    yield "      Iter       Train Loss   Remaining Time \n"
    for n in range(1, 21):
        yield f"{n:10d} {_loss(n):16.4f} {30 - n / 2:15.2f}s\n"


@_trains(12, 0, 1100)
def two_counts_in_a_line() -> Iterator[str]:
    for n in range(12):
        yield f"\n > EPOCH: {n}/1000\n --> /out/run\n"
        yield f"\x1b[1m   --> TIME: 2026-03-01 12:00:{n:02} -- STEP: {n}/100 -- GLOBAL_STEP: {n * 100}\x1b[0m\n"


@_trains(30, 1, 30)
def not_in_english() -> Iterator[str]:
    for n in range(1, 31):
        yield f"轮次 {n} 损失 {_loss(n):.4f}\n"


# ---- what trains nothing


@_none
def pip_downloads() -> Iterator[str]:
    yield "Collecting torch==2.7.0\n  Downloading torch-2.7.0-cp312-cp312-manylinux_2_28_x86_64.whl (865.2 MB)\n"
    for n in range(0, 866, 30):
        yield f"\r\x1b[2K     \x1b[38;5;237m━━━━━━━━\x1b[0m \x1b[32m{n}.2/865.2 MB\x1b[0m \x1b[31m50.1 MB/s\x1b[0m eta \x1b[36m0:00:{16 - n // 60:02}\x1b[0m"
    yield "\nSuccessfully installed torch-2.7.0\n"


@_none
def percent_downloads() -> Iterator[str]:
    for n in range(0, 101, 5):
        yield f"Downloading {n}%\n"
    for n in range(1, 30):
        yield f"Downloading shard {n}/30\n"


@_none
def wget() -> Iterator[str]:
    for n in range(0, 3000, 50):
        yield f"{n:6}K .......... .......... .......... .......... ..........  {n * 100 // 3000}% 1.{n % 9}2M {60 - n // 50}s\n"


@_none
def curl() -> Iterator[str]:
    yield "  % Total    % Received % Xferd  Average Speed   Time    Time     Time  Current\n                                 Dload  Upload   Total   Spent    Left  Speed\n"
    for n in range(0, 100, 4):
        yield f"\r{n:3}  619M  {n:3} {n * 6}.0M    0     0  10.1M      0  0:01:01  0:00:{n % 60:02}  0:00:55 10.{n % 10}M"


@_none
def dataset_downloads_drawn_by_tqdm() -> Iterator[str]:
    for n in range(0, 171, 9):
        yield f"\r{n * 100 // 170:3}%|{'█' * (n // 20)}| {n}M/170M [00:0{n // 60}<00:02, 60.{n % 9}MB/s]"
    yield "\n"
    yield "Downloading http://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz to data/MNIST/raw/train-images-idx3-ubyte.gz\n"
    for n in (0, 98304, 3211264, 6422528, 9912422):
        yield f"\r{n * 100 // 9912422:3}%|███ | {n}/9912422 [00:00<00:00, 9{n % 9}2345.98it/s]"
    yield "\n"


@_none
def access_log_of_uvicorn() -> Iterator[str]:
    for n in range(60):
        yield f'INFO:     127.0.0.1:{53410 + 2 * n} - "GET /items/{n} HTTP/1.1" 200 OK\n'


@_none
def access_log_of_nginx() -> Iterator[str]:
    for n in range(60):
        yield f'10.0.0.{n % 5} - - [01/Mar/2026:12:00:{n:02} +0000] "POST /v1/step/{n} HTTP/1.1" 200 {1000 + 3 * n} "-" "curl/8.1"\n'


@_none
def request_counters() -> Iterator[str]:
    for n in range(1, 60):
        yield f"Handled request {n} from client 10.0.0.7:{40000 + n} in 0.{n:03} s\n"


@_none
def countdown() -> Iterator[str]:
    for n in range(120, 0, -2):
        yield f"starting in {n} s\neta {n}\nremaining: {n}\n"


@_none
def clocks_and_processes() -> Iterator[str]:
    for n in range(60):
        yield f"{1772000000 + n} alive\npid {4000 + n} started\ntime {n} ok\nuptime: {n * 60}\n[{1772000000 + n}] ok 0.5{n}\n"


@_none
def memory_figures() -> Iterator[str]:
    for n in range(60):
        yield f"GPU memory {1024 + 16 * n} MiB of 81920 MiB\nmem: {n * 8}\nallocated={n * 1048576} reserved={n * 2097152}\n"


@_none
def compiler() -> Iterator[str]:
    for n in range(1, 60):
        yield f"[{n:3}/340] Building CXX object src/CMakeFiles/core.dir/part{n}.cpp.o\n"
        yield f"[{n * 100 // 340:3}%] Building CUDA object kernel{n}.cu.o\n"


@_none
def docker_build() -> Iterator[str]:
    for n in range(1, 12):
        yield f"Step {n}/12 : RUN pip install -r requirements{n}.txt\n ---> Running in 1f{n}c\n#{n} [ {n}/12] COPY . .\n"


@_none
def pytest_progress() -> Iterator[str]:
    for n in range(1, 30):
        yield f"tests/test_a{n}.py {'.' * n} [{n * 100 // 30:3}%]\n"
        yield f"      Start {n:3}: case_{n}\n {n:3}/30 Test  #{n:3}: case ....................   Passed    0.01 sec\n"


@_none
def evaluation_loops() -> Iterator[str]:
    for n in range(0, 100, 10):
        yield f"Test: [{n:3}/100]\tTime 0.1 (0.1)\tLoss 1.2e+00 (1.3e+00)\tAcc@1 70.1 (70.2)\n"
    for n in range(0, 100, 10):
        yield f"Validation step {n} loss {_loss(n):.3f}\nval batch {n}/100 loss={_loss(n):.3f}\n[eval] iter {n} acc 0.{n:02}\n"


@_none
def maps_and_tokenizers() -> Iterator[str]:
    for n in range(0, 1001, 50):
        yield f"\rMap: {n // 10:3}%|{'█' * (n // 100)}| {n}/1000 [00:00<00:01, 4321.00 examples/s]"
    for n in range(0, 1001, 50):
        yield f"\rTokenizing (num_proc=4): {n // 10:3}%|█| {n}/1000 [00:00<00:01, 432.00it/s]"
    for n in range(0, 100, 5):
        yield f"Processing document {n}/100\nLoading checkpoint shards: {n}/100\nLoaded {n} samples\n"


@_none
def model_summary() -> Iterator[str]:
    for n in range(32):
        yield f"layer {n}: attention 4.2M mlp 8.4M\nmodel.layers.{n}.self_attn.q_proj.weight [4096, 4096]\nblocks[{n}] dim 4096 heads 32\nLayer {n} has {n * 3 + 1000} params\n"


@_none
def heartbeats_and_retries() -> Iterator[str]:
    for n in range(40):
        yield f"heartbeat {n}\nretry {n} of 100\nattempt {n}: connection refused\nwaiting for master ({n})\nstill alive, tick {n}\n"


@_none
def ranks_that_come_up() -> Iterator[str]:
    for n in range(16):
        yield f"rank {n} initialised on cuda:{n % 8}\n[Gloo] Rank {n} is connected to 15 peer ranks. Expected number of connected peer ranks is : 15\nworker {n} ready\n"


@_none
def traceback() -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    for n in range(10, 40):
        yield f'  File "/home/me/train.py", line {n}, in step\n    loss = model(x, step=epoch * 10)\n'
    yield "RuntimeError: step 10 of epoch 3: loss is nan\n"


@_none
def prose_with_numbers() -> Iterator[str]:
    text = "the loss of a step in an epoch of training is a number"
    words = text.split()
    dice = random.Random(3)
    for _ in range(200):
        yield " ".join(dice.choice([*words, str(dice.randint(0, 99))]) for _ in range(9)) + "\n"


@_none
def hyperparameters() -> Iterator[str]:
    for n, name in enumerate(
        [
            "batch_size",
            "epochs",
            "max_steps",
            "warmup_steps",
            "eval_steps",
            "save_steps",
            "seed",
            "num_workers",
        ]
    ):
        yield f"{name}: {2**n}\n--{name} {100 * n}\n"
    yield "Total steps: 1000\nNumber of epochs = 3\nInstantaneous batch size per device = 8\n"


@_none
def random_numbers() -> Iterator[str]:
    dice = random.Random(5)
    for _ in range(300):
        yield f"value {dice.randint(0, 10**6)} {dice.randint(0, 10**6)} {dice.random()}\n{dice.randint(0, 999)}\n"


@_none
def sizes_of_a_sweep() -> Iterator[str]:
    for n in range(4, 14):
        yield f"n={2**n} time 0.{n}12 bandwidth 12.{n}\n    {2**n:10}   {2 ** (n - 2):10}     float     sum    -1    2{n}.1\n"


@_none
def package_manager() -> Iterator[str]:
    for n in range(1, 60):
        yield f"Get:{n} http://archive.example.org/ubuntu noble/main amd64 lib{n} amd64 1.{n} [{n * 11} kB]\n(Reading database ... {n * 5}%\n"
        yield f"Unpacking objects: {n}% ({n}/99)\nremote: Counting objects: {n}% ({n}/60)\n"


@_none
def inference_server() -> Iterator[str]:
    for n in range(30):
        yield f"INFO 03-01 12:00:{n:02} metrics.py:455] Avg generation throughput: {n}.5 tokens/s, Running: {n} reqs, Pending: 0 reqs, cache usage: 0.{n}%\n"
        yield f"\rRunning loglikelihood requests: {n:3}%|##  | {n}/100 [00:01<01:00, 16.2it/s]"


@_none
def batch_jobs_and_pings() -> Iterator[str]:
    for n in range(40):
        yield f"26/03/01 12:00:{n:02} INFO TaskSetManager: Finished task {n}.0 in stage 3.0 (TID {100 + n}) in 120 ms on host ({n + 1}/200)\n"
        yield f"\r[Stage 3:====>            ({n} + 8) / 200]\n64 bytes from 10.0.0.1: icmp_seq={n} ttl=64 time=0.0{n} ms\n"
        yield f"[{n + 1}/300] /usr/bin/nvcc -c kernel.cu -o k.o\nprobe {n} ok 200\n{n + 1}/40 files processed\n"


@_none
def questions_and_samples() -> Iterator[str]:
    for n in range(30):
        yield f"prompt {n}: accuracy so far 0.{n}\nsample {n}: score 0.{n}\ncase {n}: error 0.{n}1\nh.{n}.attn: {n * 7 + 3} params, error 0.{n}\n"


@_none
def video_and_copies() -> Iterator[str]:
    for n in range(40):
        yield f"frame={n * 30:5} fps= 30 q=28.0 size=    {n * 256}kB time=00:00:{n:02}.00 bitrate= 2097.2kbits/s speed=1.0x    \r"
        yield f"\r     {n * 32768:>12,}  {n}%   10.2MB/s    0:00:{60 - n:02}\n"


@_none
def bare_numbers_that_cycle() -> Iterator[str]:
    for k in range(60):
        yield f"{k % 5 + 1}\n"


@_none
def bare_numbers_that_cycle_after_many_even_lines() -> Iterator[str]:
    for k in range(66):
        yield f"value {k % 11 * 10}\n"


@_none
def bracketed_numbers_that_cycle() -> Iterator[str]:
    for k in range(60):
        yield f"[{k % 5 + 1}] hello\n"


@_none
def states_that_cycle() -> Iterator[str]:
    for k in range(60):
        yield f"state {k % 4 + 1} of the cluster\n"


@_none
def status_codes() -> Iterator[str]:
    for k in range(80):
        yield f"x={(200, 301, 404, 500)[k % 4]}\n"


@_none
def ranges() -> Iterator[str]:
    for k in range(60):
        yield f"[{100 * k}-{100 * k + 100}] fine\n"


@_none
def ranges_from_zero() -> Iterator[str]:
    for k in range(1, 60):
        yield f"[0-{100 * k}] fine\n"
