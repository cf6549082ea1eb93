#!/bin/bash
# two H100s: $1 = start | wait: six runs of 500 steps, two at a time, and pack 12's mutants on the cores
export PATCHLANE_HOST=h100-36x2
. scratch/env.sh; cd /tmp/w
OPTIONS="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger"
quarter() { gpu=$1 name=$2 seed=$3; shift 3; CUDA_VISIBLE_DEVICES=$gpu step 450 ${name}_$seed python3 -m model.train 1xh200_quarter --steps 500 --save-every 0 --evaluate-every 250 --seed $seed --out /tmp/runs/${name}_$seed "$@"; }
zero() { quarter 0 base 1; quarter 0 options 2 $OPTIONS; quarter 0 base 3; CUDA_VISIBLE_DEVICES=0 step 250 siso python3 -m model.train nam56r_siso --steps 6 --save-every 0 --out /tmp/runs/siso; touch /tmp/done0; }
one() { sleep 5; quarter 1 options 1 $OPTIONS; quarter 1 base 2; quarter 1 options 3 $OPTIONS; CUDA_VISIBLE_DEVICES=1 step 250 dev python3 -m model.train nam56r_tiny --stack dev --steps 6 --save-every 0 --out /tmp/runs/dev; CUDA_VISIBLE_DEVICES=1 step 250 dev_graphs python3 -m model.train nam56r_tiny --stack dev --steps 6 --save-every 0 --cuda-graphs --out /tmp/runs/dev_graphs; touch /tmp/done1; }
mutants() { sleep 200; CUDA_VISIBLE_DEVICES= nice -n 19 python3 -m reproducers.mutate pack12 --jobs 20 --within ${1:-700} --receipts /tmp/receipts >> $L/mutate12.log 2>&1; stamp "mutate12 -> $?"; }
if [ "$1" = start ]; then
  export -f zero one mutants quarter step stamp
  (zero > /dev/null 2>&1 &) ; (one > /dev/null 2>&1 &) ; (mutants 700 > /dev/null 2>&1 &)
fi
for i in $(seq ${2:-275}); do [ -f /tmp/done0 -a -f /tmp/done1 ] && break; sleep 2; done
stamp tick; cat $L/stages.log
