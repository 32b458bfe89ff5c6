# shellcheck shell=bash
# Sourced by scripts/: where things that outlive a checkout are kept, and how ccache finds them
# again from another checkout.
KVF_CACHE=${KVF_CACHE:-${HOME:-/root}/.cache/kvfabric}
export KVF_CACHE
export CCACHE_DIR=$KVF_CACHE/ccache
export CCACHE_MAXSIZE=5G
CCACHE_BASEDIR=$(pwd)
export CCACHE_BASEDIR
export CCACHE_NOHASHDIR=1
export CCACHE_COMPILERCHECK=content
mkdir -p "$CCACHE_DIR"
export TSAN_OPTIONS="ignore_noninstrumented_modules=1:halt_on_error=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
export ASAN_OPTIONS="detect_leaks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
