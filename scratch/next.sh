#!/bin/bash
# The next GPU host, two GPUs, bundle in /tmp/b: . scratch/env.sh; install; then one call each: bash scratch/next.sh STAGE
# 1: kernels, tests, upstream's tests; 2: main's code beside this, then options one on top of the other (again goes on);
# 3 (twice, 590 s each): 500 steps, three seeds. On one H200: 1 and 2.
export PATCHLANE_HOST=${HOST_ALIAS:-h200-37x2}
. scratch/env.sh; cd /tmp/w
GPUS=$(nvidia-smi -L | wc -l)
OPTIONS="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger"
FP8="--path mamba_proj=fp8"; ALL="$FP8 --path mtp_proj=fp8 --path m2rnn=triton_whole"
# on one H200 a quarter of the model with its own batch stands in: ratios of paths, no speed of nam56r_wide
if [ $GPUS = 1 ]; then RUN="python3 -m model.train 1xh200_quarter --steps 40"; LAST="step [34][0-9]/40"
else RUN="torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --steps 18"; LAST="step 1[0-8]/18"; fi
wide() { local where=$1 name=$2; shift 2; [ -e /tmp/did_$name ] && return; cd $where; step 400 $name $RUN --evaluate-every 1000 --save-every 0 --out /tmp/runs/$name $OPTIONS "$@"; grep -h "$LAST" $L/$name.log | tail -3; touch /tmp/did_$name; cd /tmp/w; }
quarter() { gpu=$1 name=$2 seed=$3; shift 3; CUDA_VISIBLE_DEVICES=$gpu step 450 ${name}_$seed python3 -m model.train 1xh200_quarter --steps 500 --save-every 0 --evaluate-every 250 --seed $seed --out /tmp/runs/${name}_$seed "$@"; }
ut() { step 560 ut_$1 python3 -m reproducers.upstream_tests --offline --lane cuda --timeout 400 --receipts /tmp/receipts $1; }
kernels() { export CUDA_VISIBLE_DEVICES=0
  PYTHONPATH=.:$PYTHONPATH step 90 bench_m2rnn python3 scratch/bench_m2rnn.py; cat $L/bench_m2rnn.log
  PYTHONPATH=.:$PYTHONPATH step 240 bench_blocks python3 scratch/bench_blocks.py; cat $L/bench_blocks.log
  gpu 60 m2rnn tests/model/layers/m2rnn; gpu 150 paths tests/model/journeys/test_gpu_paths.py; gpu 150 graphs tests/model/journeys/test_gpu_graphs.py; }
theirs() { export CUDA_VISIBLE_DEVICES=$((GPUS - 1)); for p in pack05 pack17 pack07; do ut $p; done; }
case $1 in
1) kernels & [ $GPUS = 1 ] && wait; theirs & wait;;
2)
  [ -d /tmp/w0 ] || { cp -r /tmp/w /tmp/w0; rm -rf /tmp/w0/model; tar xzf scratch/main_model.tgz -C /tmp/w0; }
  wide /tmp/w0 before $FP8; wide /tmp/w here $FP8
  wide /tmp/w all $ALL; wide /tmp/w two $ALL --accumulate 2 --profile 16:17
  wide /tmp/w overlap $ALL --accumulate 2 --overlap-grads --overlap-weights --bucket 200000000;;
3)
  if [ ! -e /tmp/begun3 ]; then touch /tmp/begun3
    (quarter 0 base 1; quarter 0 options 2 $OPTIONS; quarter 0 base 3; touch /tmp/done30) > /dev/null 2>&1 &
    (sleep 5; quarter 1 options 1 $OPTIONS; quarter 1 base 2; quarter 1 options 3 $OPTIONS; touch /tmp/done31) > /dev/null 2>&1 &
  fi
  for i in $(seq 280); do [ -e /tmp/done30 -a -e /tmp/done31 ] && break; sleep 2; done;;
esac
stamp "stage $1"; cat $L/stages.log
