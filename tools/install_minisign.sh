#!/usr/bin/env bash
# minisign for the tests that sign a bundle, from Debian's or Ubuntu's packages; nothing to do where it is there.
set -euo pipefail
command -v minisign >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no minisign, and it cannot be installed here (needs root and apt-get): its tests will be skipped" >&2
  exit 0
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends minisign >/dev/null
