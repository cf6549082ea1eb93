#!/bin/bash
# The next GPU host, bundle in /tmp/b (parts 01 to 03): . scratch/env.sh; install; then one call each: bash scratch/next.sh STAGE
# The first training run on a fresh host takes some 300 s until its first step; a call ends after 600 s.
# two H200s:  wide (590 s: before, here, all options), wide2 (accumulate 2 with a profile, with overlap, accumulate 4)
# one GPU:    quarter (590 s: here with a trace, before, here, before, two and four micro-batches), sweep (kernels' options)
# packs:      (590 s, again for the rest) the hardened packs on CUDA and all their mutants; an H100 serves
# either:     seeds (twice; two GPUs): 500 steps, three seeds of the defaults and three of the options
export PATCHLANE_HOST=${HOST_ALIAS:-h200-40}
. scratch/env.sh; cd /tmp/w
[ -d /tmp/w0 ] || { cp -r /tmp/w /tmp/w0; rm -rf /tmp/w0/model; tar xzf scratch/main_model.tgz -C /tmp/w0; }  # model/ of bb864b4
sed -i 's/ profile(activities/ profile(record_shapes=True, activities/' /tmp/w/model/profile/profiling.py
OPTIONS="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger"
FP8="$OPTIONS --path mamba_proj=fp8"; ALL="$FP8 --path mtp_proj=fp8 --path m2rnn=triton_whole"
train() { local limit=$1 dir=$2 name=$3; shift 3; [ -e /tmp/did_$name ] && return; (cd $dir; export PYTHONPATH=${PYTHONPATH%:/tmp/w}:$dir; step $limit $name "$@" --evaluate-every 1000 --save-every 0 --out /tmp/runs/$name; grep -h "^step" $L/$name.log | tail -2); touch /tmp/did_$name; }
wide() { local dir=$1 name=$2; shift 2; train 420 $dir $name torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --steps 18 "$@"; }
one() { local dir=$1 name=$2; shift 2; train 450 $dir $name python3 -m model.train 1xh200_quarter --steps 40 "$@"; }
seed() { CUDA_VISIBLE_DEVICES=$1 step 450 $2_$3 python3 -m model.train 1xh200_quarter --steps 500 --save-every 0 --evaluate-every 250 --seed $3 --out /tmp/runs/$2_$3 "${@:4}"; }
bench() { local dir=$1; shift; (cd $dir; PYTHONPATH=${PYTHONPATH//:\/tmp\/w/}:$dir timeout 280 python3 /tmp/w/scratch/bench.py "$@" >> $L/bench.log 2>> $L/bench.err; stamp "bench $* -> $?"); }
case $1 in
wide) wide /tmp/w0 before $FP8; wide /tmp/w here $FP8; wide /tmp/w all $ALL;;
wide2) wide /tmp/w two $ALL --accumulate 2 --profile 16:17; wide /tmp/w four $ALL --accumulate 4; wide /tmp/w overlap $ALL --accumulate 2 --overlap-grads --overlap-weights --bucket 200000000;;
quarter) one /tmp/w here $ALL --profile 30:30; one /tmp/w0 before $ALL; one /tmp/w here2 $ALL; one /tmp/w0 before2 $ALL; one /tmp/w two $ALL --accumulate 2; one /tmp/w four $ALL --accumulate 4;;
sweep) bench /tmp/w here sweep; bench /tmp/w sweep m2rnn; cat $L/bench.log;;
packs)  # the hardened packs' cuda lanes on GPU 0 (twice: what was not done goes on), their mutants on the cores
  HARD="36 37 16 11 01 33 35 39 10 12 09 02"
  (for n in $HARD; do [ -e /tmp/ran_$n ] && continue; CUDA_VISIBLE_DEVICES=0 step 280 run_$n python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts pack$n; touch /tmp/ran_$n; done; touch /tmp/packs_done) > /dev/null 2>&1 &
  JOBS=$(( $(nproc) * 3 / 4 ))
  (for n in $HARD; do [ -e /tmp/scored_$n ] && continue; CUDA_VISIBLE_DEVICES= nice -n 19 timeout 560 python3 -m reproducers.mutate pack$n --jobs $JOBS --receipts /tmp/receipts >> $L/mutate.log 2>&1; c=$?; stamp "mutate $n -> $c"; [ $c -le 1 ] && touch /tmp/scored_$n; done; touch /tmp/scores_done) > /dev/null 2>&1 &
  for i in $(seq 280); do [ -e /tmp/packs_done -a -e /tmp/scores_done ] && break; sleep 2; done; tail -n 2 $L/run_*.log;;
seeds)
  if [ ! -e /tmp/begun3 ]; then touch /tmp/begun3
    (seed 0 base 1; seed 0 options 2 $OPTIONS; seed 0 base 3; touch /tmp/done30) > /dev/null 2>&1 &
    (sleep 5; seed 1 options 1 $OPTIONS; seed 1 base 2; seed 1 options 3 $OPTIONS; touch /tmp/done31) > /dev/null 2>&1 &
  fi
  for i in $(seq 280); do [ -e /tmp/done30 -a -e /tmp/done31 ] && break; sleep 2; done;;
esac
stamp "stage $1"; cat $L/stages.log
