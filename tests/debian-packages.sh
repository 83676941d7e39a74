#!/bin/sh
# Installs what the tests need from Debian or Ubuntu: throwaway hosts, a browser, patch.
# Without root or apt it says what will be skipped; the tests skip those parts with the reason.
set -eu
packages="mmdebstrap systemd-container openssh-client zstd iproute2 patch curl procps chromium"
missing=""
for package in $packages; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not root or no apt: tests that need$missing are skipped" >&2
    exit 0
fi
echo "installing for the tests:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
