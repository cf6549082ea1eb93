#!/bin/bash
# The next GPU host (nvidia-h100-x2 serves; bundle in /tmp/b): . scratch/env.sh; install; then a call of 600 s each:
#   CALL=520 timeout -k 5 575 bash scratch/next.sh STAGE; tar czf $OUT/l.tgz -C /tmp logs receipts runs install.log
# first:  hardened packs on GPU 0, then pins; on GPU 1 the options with seed 2 (its first step takes some 300 s)
# second: on GPU 0 what is left of the packs, then the defaults with seed 1; on GPU 1 the options with seed 3
# mutants: hand-written ones of the hardened packs on the cores, alone: beside the others they starve them
# wide, wide2: two H200s. sweep: the kernels' options
export PATCHLANE_HOST=${HOST_ALIAS:-h100-42x2}
. scratch/env.sh; cd /tmp/w
HARD=${HARD:-"12 04 17 38 05 03 07"}; PINS=${PINS:-"main:01 main:16 main:33 main:35 main:36 main:38"}
if [ ! -d /tmp/w0 ]; then  # training reads the packs of main, whose receipts hold
  rm -rf /tmp/wt; cp -r /tmp/w /tmp/wt; rm -rf /tmp/wt/packs; tar xzf scratch/main_packs.tgz -C /tmp/wt; cp -r /tmp/wt /tmp/w0
fi
OPTIONS="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger"
ALL="$OPTIONS --path mamba_proj=fp8 --path mtp_proj=fp8 --path m2rnn=triton_whole"
BASE=${PYTHONPATH%:/tmp/w}
T=$(date +%s); left() { echo $(( ${CALL:-520} - $(date +%s) + T )); }
runs() { local need=$1 limit=$2 gpu=$3 name=$4; shift 4; [ -e /tmp/did_$name ] && return; [ $(left) -lt $need ] && return
  (cd /tmp/wt; export PYTHONPATH=$BASE:/tmp/wt CUDA_VISIBLE_DEVICES=$gpu; timeout -k 5 $(left) "$@" --save-every 0 --out /tmp/runs/$name >> $L/$name.log 2>&1; c=$?; stamp "$name -> $c"; grep -h "^step" $L/$name.log | tail -2; [ $c = 0 ] && touch /tmp/did_$name); }
seed() { runs $1 $1 $2 $3 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed $4 "${@:5}"; }
wide() { runs 250 420 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --steps 18 --evaluate-every 1000 "${@:2}"; }
packs() {
  for n in $HARD; do [ -e /tmp/ran_$n ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts pack$n > $L/run_$n.log 2>&1; c=$?; stamp "run $n -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$n; done
  for p in $PINS; do [ -e /tmp/ran_$p ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --at ${p%:*} --receipts /tmp/receipts pack${p#*:} > $L/run_$p.log 2>&1; c=$?; stamp "run $p -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$p; done; }
case $1 in
first) packs & A=$!; seed 400 1 options_seed2 2 $ALL & B=$!; wait $A $B;;
second) (packs; seed 240 0 base_seed1 1) & A=$!; (seed 220 1 options_seed3 3 $ALL; seed 220 1 options_bf16_seed1 1 $OPTIONS) & B=$!; wait $A $B;;
mutants) for n in $HARD; do [ $(left) -lt 60 ] || CUDA_VISIBLE_DEVICES= timeout -k 5 $(left) python3 -m reproducers.mutate pack$n --only hand --jobs $(( $(nproc) / 2 )) --within $(( $(left) - 45 )) --receipts /tmp/receipts >> $L/mutate.log 2>&1; stamp "mutate $n -> $?"; done;;
wide) wide all $ALL; wide two $ALL --accumulate 2;;
wide2) wide four $ALL --accumulate 4 --profile 16:17; wide overlap $ALL --accumulate 2 --overlap-grads --overlap-weights --bucket 200000000;;
sweep) timeout 280 python3 scratch/bench.py here sweep >> $L/bench.log 2>&1; cat $L/bench.log;;
esac
stamp "stage $1"; cat $L/stages.log
