#!/bin/bash
# $1: stage. 1: packs and tests on one GPU; 2: baselines and options, 500 steps each, on two GPUs
cd /tmp/w
export PATCHLANE_STORE=/tmp/store PATCHLANE_OFFLINE=1 PATCHLANE_HOST=h200-35x2 PYTHONPYCACHEPREFIX=/tmp/pyc PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE
export PYTHONPATH=$(sed -n 's/^ *export PYTHONPATH=//p' /tmp/install.log):/tmp/w
L=/tmp/logs; mkdir -p $L
[ -f /tmp/t0 ] || date +%s > /tmp/t0
stamp() { echo "$(( $(date +%s) - $(cat /tmp/t0) )) s: $*" >> $L/stages.log; }
OPTIONS="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger"
quarter() { gpu=$1 name=$2 seed=$3; shift 3; CUDA_VISIBLE_DEVICES=$gpu timeout 400 python3 -m model.train 1xh200_quarter --steps 500 --save-every 0 --evaluate-every 100 --seed $seed --out /tmp/runs/${name}_$seed "$@" > $L/${name}_$seed.log 2>&1; stamp "$name $seed -> $?"; }
case $1 in
1)
  for at in live main newest_te newest; do timeout 300 python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts pack34 --at $at >> $L/packs.log 2>&1; stamp "34 $at -> $?"; done
  timeout 300 python3 -m reproducers.mutate pack34 --lane cuda --jobs 3 --receipts /tmp/receipts > $L/mutate34.log 2>&1; stamp "mutate34 -> $?"
  timeout 200 python3 -m reproducers.upstream_tests --offline --lane cuda --receipts /tmp/receipts pack34 > $L/ut34.log 2>&1; stamp "ut34 -> $?"
  timeout 200 python3 -m pytest -q -m gpu -p no:cacheprovider tests/model/journeys/test_gpu_graphs.py tests/model/journeys/test_gpu_paths.py > $L/gpu.log 2>&1; stamp "gpu tests -> $?";;
2)
  # two at a time, and the first of each seed compiles for the others
  (quarter 0 base 1; quarter 0 base 2; quarter 0 base 3) &
  (sleep 30; quarter 1 options 1 $OPTIONS; quarter 1 options 2 $OPTIONS; quarter 1 options 3 $OPTIONS) &
  wait; stamp stage2;;
3) quarter 0 fp8 1 $OPTIONS --path mamba_proj=fp8;;
esac
touch /tmp/done$1
