#!/usr/bin/env bash
# Inside the image: FA2, FA3 and FA1 from the source packages in the folder given, checked by sources.lock beside this script.
# A compiler takes up to 6.6 GB: as many run as fit. FA2 has 72 CUDA files and no way to leave head dims out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=${1:?usage: build_flash_attention.sh FOLDER}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
memory_gb=$(awk '/MemAvailable/ {print int($2 / 1e6)}' /proc/meminfo)
cores=$(nproc)
fitting=$((memory_gb / 7 < cores ? memory_gb / 7 : cores))
export MAX_JOBS=${MAX_JOBS:-$((fitting > 0 ? fitting : 1))} NVCC_THREADS=1 CUDA_HOME=/usr/local/cuda
export FLASH_ATTENTION_FORCE_BUILD=TRUE   # do not look for wheels on GitHub

awk '{n = split($2, part, "/"); print $1 "  " part[n]}' "$here/sources.lock" > "$work/sums"
(cd "$sources" && sha256sum --check --quiet "$work/sums")
for package in flash_attn-2.8.3.post2 xformers-0.0.34; do tar -xzf "$sources/$package.tar.gz" -C "$work"; done
install() { python -m pip install -q --no-cache-dir --no-deps --no-build-isolation --no-index "$1"; }

# FA2: its own old copy of flash_attn/cute would take the place of flash-attn-4's
rm -rf "$work/flash_attn-2.8.3.post2/flash_attn/cute"
FLASH_ATTN_CUDA_ARCHS="80;90" install "$work/flash_attn-2.8.3.post2"

# FA3: sm_90a (there is no FA3 for sm_80), head dim 128 in bf16, forward and backward, windows and packed documents
for feature in SOFTCAP FP8 PAGEDKV SPLIT APPENDKV FP16 SM80 HDIM64 HDIM96 HDIM192 HDIM256 HDIMDIFF64 HDIMDIFF192; do
  export "FLASH_ATTENTION_DISABLE_$feature=TRUE"
done
install "$work/xformers-0.0.34/third_party/flash-attention/hopper"

# FA1: its extension alone, beside FA2's package of the same name
site=$(python -c "import sysconfig; print(sysconfig.get_path('platlib'))")
python "$here/build_fa1.py" "$sources/flash_attn-1.0.9.tar.gz" "$site"

# fastvideo-kernel's wheel holds a driver library: the machine's own has to be taken
find "$site" -maxdepth 3 -name "*.so" \( -path "*/fastvideo_kernel/*" -o -name "fp4*_cuda*" \) \
  -exec patchelf --replace-needed libcuda-266916da.so.580.173.02 libcuda.so.1 {} +
rm -f "$site"/fastvideo_kernel.libs/libcuda-*
