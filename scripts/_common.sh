# Shared by the scripts beside it: find or install what the machine must have.

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

# Install Debian packages, with sudo where we are not root.
debian() {
    command -v apt-get >/dev/null || { say "please install: $*"; exit 1; }
    local sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# python VENV: make a virtual environment and put it first on the PATH.
environment() {
    local venv="$1" python="${PYTHON:-python3}"
    command -v "$python" >/dev/null || debian python3 python3-venv
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { say "Python 3.11 or newer is needed; name it with PYTHON=..."; exit 1; }
    if [ ! -x "$venv/bin/python" ]; then
        "$python" -m venv "$venv" 2>/dev/null || { debian python3-venv; "$python" -m venv "$venv"; }
    fi
    export PATH="$PWD/$venv/bin:$PATH"
    case "$venv" in /*) export PATH="$venv/bin:$PATH" ;; esac
    export PIP_DISABLE_PIP_VERSION_CHECK=1
}
