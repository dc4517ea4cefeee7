# Builds what the proofs `fuzz` and `reads` run; sourced by them from the repository's root.
#
# Sets `fuzz` (the program) and PGSANDBOX_FUZZ_ORACLE (Postgres' own parser as a program), and says how long building took.
# Ends with status 2 where the parser is not to be had: Debian's libpg-query-dev, which is installed as root.

build_fuzz() {
    local target began=$SECONDS
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    if [ ! -e /usr/include/pg_query.h ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -q --no-install-recommends libpg-query-dev >/dev/null 2>&1 || true
    fi
    if [ ! -e /usr/include/pg_query.h ] || ! command -v cc >/dev/null; then
        printf '%s: needs a C compiler and Debian'\''s libpg-query-dev\n' "${0##*/}" >&2
        exit 2
    fi
    mkdir -p "$target/fuzz"
    PGSANDBOX_FUZZ_ORACLE=$target/fuzz/oracle
    if [ tests/fuzz/oracle.c -nt "$PGSANDBOX_FUZZ_ORACLE" ]; then
        cc -O1 -o "$PGSANDBOX_FUZZ_ORACLE" tests/fuzz/oracle.c -lpg_query -lpthread -lm
    fi
    export PGSANDBOX_FUZZ_ORACLE
    # The program's own versions; what this package needs besides is added by cargo and taken from nowhere.
    if [ ! -e tests/fuzz/Cargo.lock ] || ! cmp -s Cargo.lock "$target/fuzz/Cargo.lock.of"; then
        cp Cargo.lock tests/fuzz/Cargo.lock
        cp Cargo.lock "$target/fuzz/Cargo.lock.of"
    fi
    ${SLOT:-} cargo build --quiet --offline --manifest-path tests/fuzz/Cargo.toml --target-dir "$target"
    fuzz=$target/debug/fuzz
    printf 'built in %d s\n' "$((SECONDS - began))"
}
