#!/bin/bash
# The next GPU host. Two H200s, where they are lent: wide, wide2, then packs on what is left; else nvidia-h100-x2 (bundle in /tmp/b): . scratch/env.sh; install; then calls of 600 s, from the checkout:
#   CALL=520 timeout -k 5 560 bash scratch/next.sh STAGE; tar czf $OUT/l.tgz -C /tmp logs receipts runs
# Not from /tmp/w, whose scratch/ is that of the first call.
# first, second, third: packs, rope=triton in turns and pins on GPU 0; three seeds of the bf16 options (a first step takes some 300 s)
# packs:  the packs of a third stranger's holes on GPU 0; main_packs.tgz (git archive --format=tar.gz main packs manifest.yaml) is what training reads
# pins:   cuda lanes at pin main (16 takes over 180 s, 01 115 s). wide, wide2: two H200s. sweep: M2RNN's stages
export PATCHLANE_HOST=${HOST_ALIAS:-h100-43x2}
. scratch/env.sh
PINS=${PINS:-"main:33 main:35 main:36 main:38 main:16"}
HARD=${HARD:-"10 16 33 35 38 39"}
[ -d /tmp/wt ] || { cp -r /tmp/w /tmp/wt; rm -rf /tmp/wt/packs; tar xzf scratch/main_packs.tgz -C /tmp/wt; }
OPTIONS="--path loss=liger_once --path mamba3=blocks_rows --path mla=cudnn --path bc_norm=liger --path m2rnn=triton_whole"
ALL="$OPTIONS --path mamba_proj=fp8 --path mtp_proj=fp8"
BASE=${PYTHONPATH%:/tmp/w}
T=$(date +%s); left() { echo $(( ${CALL:-520} - $(date +%s) + T )); }
runs() { local need=$1 gpu=$2 name=$3; shift 3; [ -e /tmp/did_$name ] && return; [ $(left) -lt $need ] && return
  (cd /tmp/wt; export PYTHONPATH=$BASE:/tmp/wt CUDA_VISIBLE_DEVICES=$gpu; timeout -k 5 $(left) "$@" --save-every 0 --out /tmp/runs/$name >> $L/$name.log 2>&1; c=$?; stamp "$name -> $c"; grep -h "^step" $L/$name.log | tail -2; [ $c = 0 ] && touch /tmp/did_$name); }
seed() { runs $1 $2 $3 python3 -m model.train 1xh200_quarter --steps 500 --evaluate-every 250 --seed $4 "${@:5}"; }
short() { runs 60 $1 $2 python3 -m model.train 1xh200_quarter --steps 24 --evaluate-every 1000 --seed 5 "${@:3}"; }
wide() { runs 130 0,1 $1 torchrun --nproc-per-node 2 -m model.train 2xh200_wide --ep 1 --micro-batch 3 --steps 18 --evaluate-every 1000 "${@:2}"; }
rope() { F=$(find /tmp/store/trees -path "*megatron/core/models/common/embeddings/rope_utils.py" | head -1)
  (export PYTHONPATH=${F%/megatron/core/*}:$PYTHONPATH CUDA_VISIBLE_DEVICES=$1; gpu 60 rotary tests/model/layers/attention/test_rotary.py)
  short $1 rope_before $ALL; short $1 rope_after $ALL --path rope=triton; short $1 rope_again $ALL; short $1 rope_profile $ALL --path rope=triton --profile 20:21; }
packs() { for n in $HARD; do [ -e /tmp/ran_$n ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --receipts /tmp/receipts pack$n > $L/run_$n.log 2>&1; c=$?; stamp "run $n -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$n; done; }
pins() { for p in $PINS; do [ -e /tmp/ran_$p ] || [ $(left) -lt 60 ] && continue
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 $(left) python3 -m reproducers.run --offline --lane cuda --at ${p%:*} --receipts /tmp/receipts pack${p#*:} > $L/run_$p.log 2>&1; c=$?; stamp "run $p -> $c"; [ $c -ge 124 ] || touch /tmp/ran_$p; done; }
case $1 in
first) (packs; rope 0) & A=$!; (seed 400 1 bf16_seed2 2 $OPTIONS; seed 230 1 bf16_seed3 3 $OPTIONS) & B=$!; wait $A $B;;
second) (packs; rope 0; pins) & A=$!; seed 230 1 bf16_seed3 3 $OPTIONS & B=$!; wait $A $B;;
third) (seed 400 0 bf16_seed1 1 $OPTIONS) & A=$!; (pins) & B=$!; wait $A $B;;
pins) pins;;
wide) wide all $ALL; wide four $ALL --accumulate 4; wide rope $ALL --path rope=triton --accumulate 4;;
wide2) wide base; wide again $ALL --accumulate 4; wide overlap $ALL --accumulate 4 --overlap-grads --overlap-weights --bucket 200000000; wide profile $ALL --accumulate 4 --profile 16:17;;
sweep) timeout 280 python3 scratch/bench.py here sweep >> $L/bench.log 2>&1; cat $L/bench.log;;
esac
stamp "stage $1"; cat $L/stages.log
