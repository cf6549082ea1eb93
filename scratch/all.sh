#!/bin/bash
# $1: stage
cd /tmp/w
export PATCHLANE_STORE=/tmp/store PATCHLANE_OFFLINE=1 PATCHLANE_HOST=h200-33x2 PYTHONPYCACHEPREFIX=/tmp/pyc PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE
export PYTHONPATH=$(sed -n 's/^ *export PYTHONPATH=//p' /tmp/install.log):/tmp/w
L=/tmp/logs; mkdir -p $L
T0=$(date +%s); stamp() { echo "$(( $(date +%s) - $(cat /tmp/t0) )) s: $*" >> $L/stages.log; }
[ -f /tmp/t0 ] || date +%s > /tmp/t0
run() { CUDA_VISIBLE_DEVICES=$1; shift; export CUDA_VISIBLE_DEVICES; timeout 400 python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts "$@" >> $L/packs.log 2>&1; stamp "run $* -> $?"; }
ab() { name=$1; shift; timeout 280 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --steps 18 --evaluate-every 1000 --out /tmp/runs/$name "$@" > $L/train_$name.log 2>&1; stamp "train $name -> $?"; }
mutate12() { CUDA_VISIBLE_DEVICES= timeout $1 nice -n 10 taskset -c 8-31 python3 -m reproducers.mutate pack12 --within $2 --jobs 22 --receipts /tmp/receipts > $L/mutate12_$2.log 2>&1; stamp "mutate12 $2 -> $?"; }
case $1 in
1)
  (run 1 pack34 --at live; run 1 pack03 --at live; run 1 pack34 --at main) &
  (run 1 pack34 --at newest; run 1 pack34 --at newest_te; run 1 pack03 --at newest) &
  (run 0 pack12 --at live; run 0 pack12 --at beside_02) &
  (run 1 pack09 --at live; run 1 pack09 --at fixed; run 1 pack09 --at newest; CUDA_VISIBLE_DEVICES=1 timeout 60 python3 scratch/m2rnn.py > $L/m2rnn.log 2>&1; stamp m2rnn) &
  wait; stamp stage1;;
2)
  ab base
  ab once --path loss=liger_once
  ab three --path loss=liger_once --path mla=cudnn --path bc_norm=liger
  ab fp8 --path loss=liger_once --path mla=cudnn --path bc_norm=liger --path mamba_proj=fp8
  stamp stage2;;
3)
  mutate12 400 $2 &
  (CUDA_VISIBLE_DEVICES=0 timeout 400 python3 -m reproducers.mutate pack34 --lane cuda --jobs 4 --receipts /tmp/receipts > $L/mutate34.log 2>&1; stamp "mutate34 -> $?"
   CUDA_VISIBLE_DEVICES=0 timeout 400 python3 -m reproducers.upstream_tests --offline --lane cuda --receipts /tmp/receipts pack05 > $L/ut05.log 2>&1; stamp "ut05 -> $?") &
  for p in pack34 pack36 pack04 pack33; do CUDA_VISIBLE_DEVICES=1 timeout 300 python3 -m reproducers.upstream_tests --offline --lane cuda --receipts /tmp/receipts $p > $L/ut_$p.log 2>&1; stamp "ut $p -> $?"; done &
  wait; stamp stage3;;
esac
touch /tmp/done$1
