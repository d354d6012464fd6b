#!/usr/bin/env bash
# Apptainer and debootstrap for the tests that build an image and work in it; nothing to do where they are there.
# Debian has Apptainer in unstable only. On an older Debian that package goes to /opt/apptainer, with unstable's C library for itself alone.
set -euo pipefail

give_up() {
  echo "no apptainer, and it cannot be installed here ($1): no test can work in an image" >&2
  exit 0
}

command -v apptainer >/dev/null && command -v debootstrap >/dev/null && exit 0
[ "$(id -u)" = 0 ] || give_up "needs root"
command -v apt-get >/dev/null || give_up "needs apt-get"
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends debootstrap patchelf squashfs-tools squashfuse fuse3 uidmap >/dev/null
command -v apptainer >/dev/null && exit 0
"${apt[@]}" install -y --no-install-recommends apptainer >/dev/null 2>&1 && exit 0

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ "$(. /etc/os-release && echo "$ID")" = debian ] && [ -f "$keyring" ] || give_up "not Debian, whose unstable has it"
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ' || true)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs}
cp /var/lib/dpkg/status "$work/status"
echo "deb [signed-by=$keyring] ${mirror:-http://deb.debian.org/debian} sid main" >"$work/sid.list"
own=(-o Dir::Etc::sourcelist="$work/sid.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
  -o Dir::Cache="$work/cache" -o Dir::State::status="$work/status" -o APT::Sandbox::User=root) # the system's own lists stay as they are
apt-get -qq "${own[@]}" update || give_up "Debian's unstable cannot be reached"
(cd "$work/debs" && apt-get -qq "${own[@]}" download apptainer libc6 libseccomp2 libsqlite3-0)

prefix=/opt/apptainer
libraries=$prefix/usr/lib/x86_64-linux-gnu
rm -rf "$prefix"
mkdir -p "$prefix"
for package in "$work"/debs/*.deb; do dpkg-deb -x "$package" "$prefix"; done
mv "$prefix/etc" "$prefix/usr/etc" # it looks for its own files from where its program lies
ln -s ../etc "$prefix/usr/lib/etc"
ln -s ../var "$prefix/usr/lib/var"
mkdir -p "$prefix/usr/var/lib/apptainer/mnt/session"
for program in "$prefix/usr/bin/apptainer" "$libraries/apptainer/bin/starter"; do
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "$program"
done
# root in a container may lack some capability, and asking for all of them then fails
sed -i 's/^root default capabilities = .*/root default capabilities = no/' "$prefix/usr/etc/apptainer/apptainer.conf"
for file in /etc/subuid /etc/subgid; do # for `build --fakeroot`
  grep -q '^root:' "$file" || echo root:200000:65536 >>"$file"
done
[ ! -e /dev/fuse ] || chmod 666 /dev/fuse # users mount images through it
ln -sfn "$prefix/usr/bin/apptainer" /usr/local/bin/apptainer
apptainer --version
