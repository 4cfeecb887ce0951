#!/usr/bin/env bash
# Find a Chromium for the tests of the page, or install one; .venv has Playwright.
# Usage: tools/setup_browser.sh
#
# Where none can be had, it says so, and those tests fail; all else works without.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
log=.venv/browser-install.txt

say() { printf 'setup: %s\n' "$*"; }

# Whether the tests find a browser that starts; they know where to look.
browser_works() {
    "$python" - >/dev/null 2>&1 <<'PY'
import sys

sys.path.insert(0, ".")
from tests.browser import started_browser

with started_browser() as browser:
    browser.new_page().set_content("<p>it works</p>")
PY
}

if browser_works; then
    exit 0
fi
say "installing a Chromium for the tests of the page"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    install=(timeout 240 apt-get install -y --no-install-recommends chromium)
    export DEBIAN_FRONTEND=noninteractive
    {
        "${install[@]}" || { timeout 60 apt-get update && "${install[@]}"; }
    } >"$log" 2>&1 </dev/null || true
    browser_works && exit 0
fi
if timeout 120 "$python" -m playwright install --only-shell chromium >>"$log" 2>&1; then
    browser_works && exit 0
fi
say "no Chromium could be installed ($log): the tests of the page in a browser will" \
    "fail; install your system's package chromium"
