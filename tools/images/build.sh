#!/usr/bin/env bash
# Builds the base images of docker-compose.yml and the Dockerfiles, under the same names, from Debian's packages and the
# pinned jars: for machines that reach those but no image registry.
#
#   build.sh           build the images that are missing
#   build.sh --pull    pull them from a registry if one answers, build the others
#   build.sh --force   build all of them again
#
# Weighed in docs/decisions.md, "Images without a registry". Grafana is not built: Debian does not package it, and
# docker-compose.yml has it in a separate profile.
#
# The images trust this machine's own certificates besides Debian's, so a proxy with its own CA works. DEBIAN_MIRROR
# names a mirror, else debootstrap's own is used; HTTP_PROXY, HTTPS_PROXY and NO_PROXY are passed on.
set -euo pipefail
cd "$(dirname "$0")"

SUITE=trixie
PYTHON=python:3.13-slim
JAVA=eclipse-temurin:21-jre
KAFKA=apache/kafka:4.3.1
REGISTRY=apicurio/apicurio-registry:3.0.9
PROMETHEUS=prom/prometheus:v2.53.3
BASE=deelog/debian:$SUITE
PULL_SECONDS=${DEELOG_PULL_SECONDS:-120}
LABEL=org.deelog.stand-in

fail() {
    echo "images: $*" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null || fail "$1 was not found: $2"
}

is_here() {
    docker image inspect "$1" >/dev/null 2>&1
}

# Without a registry the daemon fails at once; a slow registry gets PULL_SECONDS.
pull() {
    local code=0
    timeout "$PULL_SECONDS" docker pull --quiet "$1" >/dev/null 2>&1 || code=$?
    [ $code -eq 0 ] || echo "images: $1 cannot be pulled here" >&2
    return $code
}

debian() {
    is_here "$BASE" && [ "$mode" != --force ] && return
    need debootstrap "install it (Debian, Ubuntu: apt install debootstrap)"
    [ "$(id -u)" -eq 0 ] || fail "debootstrap needs root: run this with sudo, or give Docker a registry"
    local root="$place/root" log="$place/debootstrap.log"
    say "$BASE"
    # shellcheck disable=SC2086  # no mirror is no argument
    debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" ${DEBIAN_MIRROR:-} >"$log" 2>&1 ||
        fail "debootstrap failed; its log ends with:"$'\n'"$(tail -5 "$log")"
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null ||
        say "this machine has no certificates of its own to add"
    chroot "$root" update-ca-certificates >>"$log" 2>&1 || fail "$(tail -5 "$log")"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import --change "LABEL $LABEL=yes" - "$BASE" >/dev/null
}

# name, folder of its Dockerfile
make_image() {
    say "$1"
    local log="$place/build.log"
    docker build --force-rm --tag "$1" --label "$LABEL=yes" \
        --build-arg HTTP_PROXY --build-arg HTTPS_PROXY --build-arg NO_PROXY \
        --build-arg BASE="$BASE" --build-arg JAVA="$JAVA" "$2" >"$log" 2>&1 ||
        fail "$1 could not be built; the log ends with:"$'\n'"$(tail -15 "$log")"
}

kafka() {
    local deelog=../../.venv/bin/deelog context="$place/kafka" jars
    [ -x "$deelog" ] || fail "$deelog was not found: run \`make images\`, which installs it first"
    jars="$("$deelog" kafka jars kafka)" || fail "Kafka's jars could not be had"
    cp -r kafka "$context"
    mkdir "$context/libs"
    tr , '\n' <<<"$jars" | xargs -I{} install -m 644 {} "$context/libs/"
    make_image "$KAFKA" "$context"
}

registry() {
    local deelog=../../.venv/bin/deelog context="$place/registry" archive
    [ -x "$deelog" ] || fail "$deelog was not found: run \`make images\`, which installs it first"
    archive="$("$deelog" kafka jars apicurio)" || fail "Apicurio Registry could not be had"
    cp -r registry "$context"
    mkdir "$context/app"
    tar -C "$context/app" -xzf "$archive"
    chmod -R a+rX "$context/app"
    make_image "$REGISTRY" "$context"
}

say() {
    echo "images: $((SECONDS)) s: $*"
}

mode=${1:-}
case $mode in
"" | --pull | --force) ;;
*) fail "unknown option $mode: use none, --pull or --force" ;;
esac
need docker "install Docker (Debian, Ubuntu: apt install docker.io docker-compose)"
docker info >/dev/null 2>&1 || fail "no Docker engine answers: start it (systemctl start docker, or dockerd by hand)"

place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
wanted=()
for image in "$PYTHON" "$JAVA" "$KAFKA" "$REGISTRY" "$PROMETHEUS"; do
    if [ "$mode" = --force ] || { ! is_here "$image" && { [ "$mode" != --pull ] || ! pull "$image"; }; }; then
        wanted+=("$image")
    fi
done
for image in "${wanted[@]}"; do
    debian
    mode=${mode/--force/} # --force builds Debian once, not for each image
    case $image in
    "$PYTHON") make_image "$image" python ;;
    "$JAVA") make_image "$image" java ;;
    "$KAFKA") kafka ;;
    "$REGISTRY") registry ;;
    "$PROMETHEUS") make_image "$image" prometheus ;;
    esac
done
say "here are $PYTHON, $JAVA, $KAFKA, $REGISTRY and $PROMETHEUS"
