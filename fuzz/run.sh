#!/bin/sh
# run.sh [TARGET...] - builds the fuzz targets with clang, ASan and UBSan, and runs each for FUZZ_SECONDS (60).  New
# inputs are kept in $FUZZ_OUT/corpus (build-fuzz/corpus), what fails in $FUZZ_OUT/crash-*; fuzz/corpus is only read.
# Skips, saying so, where there is no clang with libFuzzer.  Exit 1 when a target found something.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${FUZZ_OUT:-$root/build-fuzz}
seconds=${FUZZ_SECONDS:-60}
CLANG=${CLANG:-clang}
mkdir -p "$out"

echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d == 0 && n; }' >"$out/probe.c"
if ! "$CLANG" -fsanitize=fuzzer,address,undefined "$out/probe.c" -o "$out/probe" 2>"$out/probe.log"; then
    echo "fuzz: skipped: $CLANG with libFuzzer is needed (Debian: clang and libclang-rt-dev); its words are in $out/probe.log"
    exit 0
fi

if ! { cmake -S "$root" -B "$out/build" -DCMAKE_C_COMPILER="$CLANG" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOEWE_FUZZ=ON \
    -DMOEWE_SANITIZE=address,undefined -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link &&
    cmake --build "$out/build" -j "${JOBS:-$(nproc)}" --target fuzzers; } >"$out/build.log" 2>&1; then
    tail -n 40 "$out/build.log"
    exit 1
fi

options="-max_total_time=$seconds -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -print_final_stats=1 -use_value_profile=0"
failed=0
for target in ${*:-$(cd "$root/fuzz" && ls fuzz_*.c | sed 's/fuzz_\(.*\)\.c/\1/')}; do
    if [ ! -x "$out/build/fuzz_$target" ]; then
        echo "fuzz: $target: skipped: not in this build"
        continue
    fi
    mkdir -p "$out/corpus/$target"
    like=$target # whose words and seeds it shares
    case $target in family | planner) like=config ;; esac
    dict=
    [ -f "$root/fuzz/$like.dict" ] && dict="-dict=$root/fuzz/$like.dict"
    echo "fuzz: $target, $seconds seconds"
    # shellcheck disable=SC2086
    if "$out/build/fuzz_$target" $options $dict -artifact_prefix="$out/crash-$target-" "$out/corpus/$target" \
        "$root/fuzz/corpus/$target" "$root/fuzz/corpus/$like" >"$out/$target.log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$target.log")
        peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$out/$target.log")
        echo "fuzz: $target: ${runs:-?} inputs, nothing found, at most ${peak:-?} MiB"
    else
        failed=1
        tail -n 40 "$out/$target.log"
        echo "fuzz: $target failed; the input is $out/crash-$target-*, the whole log $out/$target.log"
    fi
done
exit $failed
