#!/usr/bin/env bash
# Make .venv ready for work: python, torch, this package (editable), its tools.
# Does nothing when that is done already. Usage: tools/setup_env.sh
#
# PYTHON=/path/to/python3 chooses the interpreter that a new .venv is made from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch_to_install=2.13.0 # what the tests are run with; torch_is_usable has the oldest
venv=.venv
python=$venv/bin/python
stamp=$venv/partita-setup

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: error: %s\n' "$@" >&2
    exit 1
}

# Why this python cannot carry Partita; prints nothing when it can.
reason_against() {
    "$1" - 2>/dev/null <<'PY' || echo "it does not start"
import sys

if sys.version_info < (3, 11):
    print("it is Python %d.%d" % sys.version_info[:2])
else:
    from importlib.util import find_spec

    lacking = [name for name in ("venv", "ensurepip") if not find_spec(name)]
    if lacking:
        print("it lacks the module " + " and ".join(lacking))
PY
}

# The oldest torch that will do stands here and in pyproject.toml.
torch_is_usable() {
    "$1" - 2>/dev/null <<'PY'
import re
import torch

major, minor, rest = re.match(r"(\d+)\.(\d+)(.*)", torch.__version__).groups()
found = int(major), int(minor)
is_prerelease = bool(re.match(r"[.\d]*(a|b|rc|\.dev)", rest))
raise SystemExit(not (found > (2, 11) or (found == (2, 11) and not is_prerelease)))
PY
}

find_python() {
    local candidate reason seen=()
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        command -v "$candidate" >/dev/null || continue
        reason=$(reason_against "$candidate")
        if [ -z "$reason" ]; then
            command -v "$candidate"
            return
        fi
        seen+=("$(command -v "$candidate"): $reason")
    done
    fail "no Python 3.11 or newer with venv and pip was found." \
        ${seen[@]+"${seen[@]}"} \
        "Install one (Debian and Ubuntu: the packages python3 and python3-venv)," \
        "or name it: make setup PYTHON=/path/to/python3"
}

make_venv() {
    local base site=()
    base=$(find_python)
    if torch_is_usable "$base"; then
        say "$base has torch; $venv will use it"
        site=(--system-site-packages)
    fi
    say "making $venv with $base"
    "$base" -m venv ${site[@]+"${site[@]}"} "$venv" ||
        fail "$base -m venv $venv failed; its message stands above."
}

# The stamp says for which checkout, and for which version of these files, the
# work was done: the editable install holds the checkout's absolute path.
wanted_stamp() { echo "$PWD" && cat pyproject.toml tools/setup_*.sh | cksum; }

if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(wanted_stamp)" ]; then
    exit 0
fi

if [ ! -e "$venv" ]; then
    make_venv
else
    reason=$(reason_against "$python")
    [ -z "$reason" ] || fail "$venv is there, but $python is of no use: $reason." \
        "Remove $venv and call again."
fi
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip --upgrade >/dev/null

if ! torch_is_usable "$python"; then
    say "installing torch $torch_to_install (large; once)"
    "$python" -m pip install "torch==$torch_to_install" ||
        fail "torch could not be installed; pip's message stands above." \
            "Is there a network, and a wheel for this Python and machine?"
fi

say "installing partita and its development tools into $venv"
"$python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
    >"$venv/keep-torch.txt"
"$python" -m pip install --quiet --constraint "$venv/keep-torch.txt" --editable '.[dev]' ||
    fail "the installation failed; pip's message stands above."

tools/setup_browser.sh

wanted_stamp >"$stamp"
say "done"
