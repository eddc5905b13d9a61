#!/usr/bin/env bash
# Fuzzes what reads bytes that anyone may have written: ELF files, unwind data, maps, records of the kernel, samples, and
# after these the files, logs and messages that Python reads (scripts/fuzz_python.py; as python-NAME, such as python-job).
#
#   scripts/fuzz.sh [SECONDS [TARGET ...]]   SECONDS (600) of each target (all); of those in Python a fifth
#   scripts/fuzz.sh seeds                    make the seeds of perf_record anew, from what this kernel writes
#   scripts/fuzz.sh lock                     after a change of native/Cargo.lock: the same versions for fuzzing
#
# The compiler of native/ and a C++ compiler are all it needs: code coverage is a stable option of rustc, libFuzzer comes
# with its crate. JOBS=2 runs two targets at once; SEED=1 begins each the same way again. What crashed, hung or took too
# much memory is in .cache/fuzz/found/; native/src/hostile.rs is where such an input becomes a test. Exit code 1: there
# is one.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

root=$PWD
cache=$root/.cache/fuzz
crate=native/fuzz

if [ "${1:-}" = lock ]; then
  cp native/Cargo.lock "$crate/Cargo.lock"
  cd "$crate" && exec cargo update --workspace --quiet
fi
if [ "${1:-}" = seeds ]; then
  cd native
  UNIDLE_FUZZ_SEEDS=$root/$crate/seeds/perf_record exec cargo test --release --no-default-features --locked --lib --quiet makes_seeds
fi

seconds=${1:-600}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: SECONDS is '$seconds'; it has to be a whole number from 1 on" >&2; exit 2; }
shift $(($# > 0))
targets=("$@")
python=.venv/bin/python
if ! ((${#targets[@]})); then
  for source in "$crate"/fuzz_targets/*.rs; do targets+=("$(basename "$source" .rs)"); done
  for name in $("$python" scripts/fuzz_python.py --list); do targets+=("python-$name"); done
fi
native=0
for target in "${targets[@]}"; do
  [[ $target = python-* ]] && continue  # it names those that there are
  native=1
  [ -f "$crate/fuzz_targets/$target.rs" ] || { echo "fuzz: there is no target '$target' in $crate/fuzz_targets" >&2; exit 2; }
done

# What cargo-fuzz asks of rustc, without the sanitizers, which only a nightly one has: the readers are safe Rust, so that
# a panic, an overflow, a hang and memory are what can go wrong.
coverage=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
)
((native == 0)) || host=$(rustc -vV | sed -n 's/^host: //p')
command -v c++ >/dev/null || export CXX="${CXX:-clang++}"
build=${CARGO_TARGET_DIR:-$cache/target}
# For a few seconds of each target the build is what costs: less optimized, it takes two thirds of the time.
quick=()
((seconds >= 60)) || quick=(--config profile.release.opt-level=1 --config 'profile.release.lto="off"')
((native == 0)) || (cd "$crate" && CARGO_TARGET_DIR=$build RUSTFLAGS="--cfg fuzzing ${coverage[*]}" \
  cargo build --release --locked --quiet --target "$host" --bins "${quick[@]}") || {
  echo "fuzz: the targets do not build; where Cargo.lock is to blame: scripts/fuzz.sh lock" >&2
  exit 1
}

fuzz() {
  local target=$1 rc=0 seeds=()
  if [[ $target = python-* ]]; then
    # a known number of inputs with a given seed: how fast the machine is must not decide what is found
    PYTHONHASHSEED=0 "$python" scripts/fuzz_python.py "${target#python-}" --seconds $(((seconds + 4) / 5)) \
      --seed "${SEED:-1}" ${SEED:+--inputs $((seconds * 20))}
    return
  fi
  mkdir -p "$cache/corpus/$target" "$cache/found"
  [ -d "$crate/seeds/$target" ] && seeds=("$crate/seeds/$target")
  [ "$target" = sample ] && seeds+=(native/tests/golden)
  "$build/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 ${SEED:+-seed="$SEED"} \
    -artifact_prefix="$cache/found/$target-" "$cache/corpus/$target" "${seeds[@]}" >"$cache/$target.log" 2>&1 || rc=$?
  if [ $rc = 0 ]; then
    echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$cache/$target.log") inputs in $seconds s, none that crashes"
  else
    tail -n 30 "$cache/$target.log" >&2
    echo "fuzz: $target: exit code $rc, see $cache/found/" >&2
    return 1
  fi
}

failed=0 running=0
for target in "${targets[@]}"; do
  fuzz "$target" &
  ((++running < ${JOBS:-1})) && continue
  wait -n || failed=1
  running=$((running - 1))
done
while ((running--)); do wait -n || failed=1; done
exit $failed
